#!/usr/bin/env bash
# Fetches the Keycloak that the tests start, from Maven Central, and prepares it so that it starts in seconds.
#
#   stdout: its folder, as its only line
#   stderr: progress
#
# Done once (about a minute, 170 MB) and kept in ${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/bursar}/keycloak.
set -euo pipefail

version=26.4.7
cache=${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bursar}/keycloak
folder=$cache/$version

say() { echo "keycloak: $*" >&2; }

if [ ! -e "$folder/prepared" ]; then
    for program in java mvn; do
        command -v "$program" >/dev/null || { say "there is no \`$program\` in PATH; \`make keycloak\` installs it"; exit 1; }
    done
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    if [ ! -e "$folder/prepared" ]; then
        new=$cache/new
        rm -rf "$new" "$folder"
        mkdir "$new"
        say "fetching $version from Maven Central (160 MB)"
        mvn --quiet --batch-mode -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
            -Dartifact="org.keycloak:keycloak-quarkus-dist:$version:tar.gz" -DoutputDirectory="$new" >&2 9>&-
        tar -xzf "$new/keycloak-quarkus-dist-$version.tar.gz" -C "$new"
        say "preparing it"
        # Sets the options that Keycloak needs at build time. Otherwise each start would build Keycloak first.
        "$new/keycloak-$version/bin/kc.sh" build --db=dev-mem --health-enabled=false --metrics-enabled=false >&2 9>&-
        mv "$new/keycloak-$version" "$folder"
        rm -rf "$new"
        touch "$folder/prepared"
        say "it is in $folder"
    fi
fi
echo "$folder"
