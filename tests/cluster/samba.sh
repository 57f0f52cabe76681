#!/usr/bin/env bash
# Makes the Active Directory that the tests copy and start: the domain ad.example.org of Samba's domain controller.
#
#   stdout: the folder of the domain, as its only line
#   stderr: progress
#
# Made once (10 to 20 s) and kept in ${BURSAR_CACHE:-${XDG_CACHE_HOME:-~/.cache}/bursar}/samba. Needs root, as the
# domain controller does.
set -euo pipefail

say() { echo "samba: $*" >&2; }
command -v samba-tool >/dev/null || { say "there is no samba-tool (\`make domain\` installs it)"; exit 1; }

# The domain depends on Samba's version and the recipe below (increase the number when the recipe changes).
recipe=1
version=$(samba-tool --version)
cache=${BURSAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bursar}/samba
folder=$cache/$version-$recipe

if [ ! -e "$folder/made" ]; then
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
fi
if [ ! -e "$folder/made" ]; then
    say "making a domain (once, 10 to 20 s)"
    new=$cache/.new
    rm -rf "$new" "$folder"
    mkdir "$new"
    # Without this empty file, Samba's tools would use /etc/samba/smb.conf.
    printf '[global]\n' >"$new/empty.conf"
    # The domain has the SID of SSSD's documentation, so that the tests know which uids come from it.
    samba-tool domain provision -s "$new/empty.conf" --targetdir="$new/dc" --server-role=dc --use-rfc2307 \
        --dns-backend=NONE --realm=AD.EXAMPLE.ORG --domain=ADX --domain-sid=S-1-5-21-123-456-789 \
        --adminpass='Passw0rd!x' --host-name=dc1 --host-ip=127.0.0.1 \
        --option="interfaces=lo" --option="bind interfaces only=yes" >"$new/log" 2>&1 || { tail -n 20 "$new/log" >&2; exit 1; }
    touch "$new/dc/made"
    mv "$new/dc" "$folder"
    rm -rf "$new"
fi
echo "$folder"
