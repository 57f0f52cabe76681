#!/usr/bin/env bash
# Installs those Debian packages that the tests and the demo need and that are missing. Prints nothing if none is
# missing.
set -euo pipefail

missing=()
for package in slapd ldap-utils sqlite3 openssl curl util-linux faketime bindfs btrfs-progs e2fsprogs systemd prometheus "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ "${#missing[@]}" != 0 ] || exit 0

if [ "$(id -u)" = 0 ]; then root=(); else root=(sudo -n); fi
echo "apt: installing ${missing[*]}" >&2

# The tests start their own servers, so a package must not start one for the whole machine. Debian runs policy-rc.d
# before it starts a service. If that file exists, it belongs to the administrator, and stays.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap '"${root[@]}" rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee /usr/sbin/policy-rc.d >/dev/null
    "${root[@]}" chmod 755 /usr/sbin/policy-rc.d
fi

log=$(mktemp)
quietly() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 </dev/null || { cat "$log" >&2; exit 1; }; }
quietly apt-get update
quietly apt-get install -y --no-install-recommends "${missing[@]}"
rm -f "$log"
