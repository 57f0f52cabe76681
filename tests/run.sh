#!/bin/sh
# Starts a test, the demo or a benchmark. On a machine with the package's user `bursar`, programs of root would become
# that user, who cannot read the files of a test. Therefore they run without this user in /etc/passwd.
#
#   tests/run.sh PROGRAM ARGUMENT…
set -eu
if [ "$(id -u)" != 0 ] || ! { getent passwd bursar || getent group bursar bursar-admin; } >/dev/null; then
    exec "$@"
fi
work=$(mktemp -d)
grep -v '^bursar:' /etc/passwd >"$work/passwd"
grep -v -e '^bursar:' -e '^bursar-admin:' /etc/group >"$work/group"
# systemd or a directory may also know the user, so only files are read.
printf '%s: files\n' passwd group >"$work/nsswitch.conf"
grep -v -e '^passwd:' -e '^group:' -e '^initgroups:' /etc/nsswitch.conf >>"$work/nsswitch.conf" || true
chmod 755 "$work" && chmod 644 "$work"/*
# shellcheck disable=SC2016  # the inner shell expands this
exec unshare --mount -- sh -c '
    # These files are on a file system of their own, so that `rm` below does not remove them. A test mounts over them,
    # which is impossible if they are removed.
    mkdir "$0/kept" && mount -t tmpfs -o mode=755 tmpfs "$0/kept"
    for file in passwd group nsswitch.conf; do
        cp -p "$0/$file" "$0/kept/$file"
        mount --bind "$0/kept/$file" "/etc/$file"
    done
    umount --lazy "$0/kept"
    rm -r "$0"
    exec "$@"' "$work" "$@"
