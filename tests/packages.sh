#!/usr/bin/env bash
# Tests the contents of both packages. Then boots a system of its own, in which systemd starts the daemons of the deb, and
# the deb is upgraded and purged.
#
#   tests/packages.sh DEB RPM
#
# Needs root. The system is a Debian made by debootstrap, kept in ${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/bursar}.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$#" = 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 64; }
deb=$(realpath "$1") rpm=$(realpath "$2")
tests/cluster/apt.sh debootstrap systemd-container rpm prometheus

say() { echo "packages: $*" >&2; }
fail() { say "$*"; exit 1; }
is() { [ "$2" = "$3" ] || fail "$1: $2, not $3"; }

work=$(mktemp -d)
nspawn=
end() {
    if [ -n "$nspawn" ] && kill -0 "$nspawn" 2>/dev/null; then
        within systemctl poweroff >/dev/null 2>&1 || true
        timeout 20 tail --pid="$nspawn" -f /dev/null || kill -KILL "$nspawn" || true
    fi
    rm -rf "$work"
}
trap end EXIT

# --- the rpm: contents, owners, scripts -----------------------------------------------------------------------------
say "the rpm"
rpm --nosignature -K "$rpm" >/dev/null || fail "the rpm's digests are wrong"
owner() { rpm --nosignature -qp --qf '[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME}\n]' "$rpm" | awk -v name="$1" '$1 == name { print $2, $3 }'; }
is "the configuration in the rpm" "$(owner /etc/bursar/bursar.toml)" "-rw-r----- root:bursar"
is "bursard in the rpm" "$(owner /usr/bin/bursard)" "-rwxr-xr-x root:root"
is "the rpm's configuration files" "$(rpm --nosignature -qpc "$rpm" | sort | tr '\n' ' ')" "/etc/bursar/bursar.toml /etc/bursar/homed.env "
for script in packaging/rpm/*.sh packaging/deb/*; do
    sh -n "$script"
done
mkdir "$work/rpmroot"
rpm --root "$work/rpmroot" --initdb
rpm --root "$work/rpmroot" --nosignature -i --nodeps --noscripts "$rpm" 2>/dev/null
for program in bursar bursard bursar-homed bursar-webhook; do
    "$work/rpmroot/usr/bin/$program" --version >/dev/null || fail "$program of the rpm does not run"
done

# --- both packages contain the same files -----------------------------------------------------------------------------
# The distributions differ in the folders of shell completions, and in whether manual pages are gzipped.
names() { grep -v -e '/$' -e zsh -e copyright | sed -e 's/\.gz$//' | sort; }
dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's/^\.//' | names >"$work/deb.names"
rpm --nosignature -qpl "$rpm" | names >"$work/rpm.names"
diff "$work/deb.names" "$work/rpm.names" >&2 || fail "the packages contain different files"

# --- the documentation ----------------------------------------------------------------------------------------------
say "the documentation"
installed=$work/rpmroot/usr/share/doc/bursar
for page in CHANGELOG.md upgrade.md; do
    [ -s "$installed/$page" ] || fail "the packages lack $page"
done
grep -roE '\]\([^)#:]+[)#]' "$installed" --include='*.md' | sed 's/[)#]$//' | while IFS=: read -r page link; do
    [ -e "$(dirname "$page")/${link#](}" ] || fail "$page: dead link ${link#](}"
done

# --- the deb, in a booted system -------------------------------------------------------------------------------------
cache=${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bursar}/system
if [ ! -e "$cache/bookworm/made" ]; then
    say "making a Debian (once, about a minute)"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Release: bookworm' | head -n 1)
    rm -rf "$cache/bookworm"
    mkdir -p "$cache"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,sqlite3 bookworm "$cache/bookworm" "$mirror" >"$work/debootstrap.log" 2>&1 ||
        { tail "$work/debootstrap.log" >&2; exit 1; }
    touch "$cache/bookworm/made"
fi
system=$work/system
cp -a --reflink=auto "$cache/bookworm" "$system"
cp "$deb" "$system/bursar.deb"

say "booting"
# nspawn runs in a mount namespace of its own, so that its mounts are not visible outside.
unshare -m bash -c 'mount --make-rprivate / && exec systemd-nspawn --register=no --keep-unit -q -D "$1" --private-network --console=passive -b' \
    - "$system" </dev/null >"$work/console.log" 2>&1 &
nspawn=$!
leader=
within() { nsenter -t "$leader" -a -- "$@"; }
soon() {
    local what=$1 deadline=$((SECONDS + 60))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || { tail -n 20 "$work/console.log" >&2; fail "not within a minute: $what"; }
        kill -0 "$nspawn" 2>/dev/null || { tail -n 20 "$work/console.log" >&2; fail "the system ended before: $what"; }
        sleep 0.2
    done
}
# Finds systemd of that system by its root folder. Succeeds when the system has booted.
booted() {
    local process
    for process in $(pgrep -x systemd); do
        if [ "$(readlink "/proc/$process/root")" = "$system" ] || [ -e "/proc/$process/root/bursar.deb" ]; then
            leader=$process
            within systemctl is-system-running 2>/dev/null | grep -qE 'running|degraded' && return 0
        fi
    done
    return 1
}
soon "the system has booted" booted

mode() { within stat -c '%A %U:%G' "$1"; }
state() { within systemctl is-active "$1" 2>/dev/null || true; }
# Runs a command in the system. It must end with this exit code.
ends() {
    local awaited=$1 code=0
    shift
    within "$@" >"$work/output" 2>&1 || code=$?
    [ "$code" = "$awaited" ] || { cat "$work/output" >&2; fail "$*: exit code $code, not $awaited"; }
}

# A directory and a control plane on this host, in the network namespace of the system.
say "starting an LDAP server and a Kubernetes control plane"
site=$work/site
mkdir "$site"
exec {serving}> >(exec nsenter -t "$leader" -n -- "${CARGO_TARGET_DIR:-target}/debug/examples/site" "$site" >"$work/site.log" 2>&1)
soon "the servers answer" grep -q ready "$work/site.log"

# Runs the commands of one task of docs/first-day.md as the page shows them; their output is in $work/output.
today() {
    local task=$1 command commands
    mapfile -t commands < <(awk -v task="## $task." '/^## /{here = index($0, task) == 1} here && sub(/^    /, "")' docs/first-day.md)
    [ "${#commands[@]}" -gt 0 ] || fail "docs/first-day.md has no commands for task $task"
    : >"$work/today"
    for command in "${commands[@]}"; do
        ends "${day_ends[$command]:-0}" bash -c "cd && $command"
        cat "$work/output" >>"$work/today"
    done
}
# The expected exit codes of the page's commands, if not 0.
declare -A day_ends=()
prints() { grep -qE -- "$1" "$work/today" || { cat "$work/today" >&2; fail "the first day: nothing printed like: $1"; }; }

say "the first day, 1: install"
cp "$deb" "$system/root"
today 1
is "the configuration" "$(mode /etc/bursar/bursar.toml)" "-rw-r----- root:bursar"
within sh -c '[ "$(wc -l </etc/bursar/bursar.toml)" -le 12 ] && [ -s /usr/share/doc/bursar/bursar.toml ]' ||
    fail "the package must contain a short configuration and its manual"
is "the passwords' folder" "$(mode /etc/bursar/credentials)" "drwxr-x--- root:bursar"
is "the state folder" "$(mode /var/lib/bursar)" "drwxr-x--- bursar:bursar"
is "the sockets' folder" "$(mode /run/bursar)" "drwxr-xr-x bursar:bursar"
is "the folder of homed's socket" "$(mode /run/bursar-homed)" "drwxr-xr-x root:root"
is "the webhook's folder" "$(mode /etc/bursar-webhook)" "drwxr-x--- bursar-webhook:bursar-webhook"
is "the approver's folder" "$(mode /etc/bursar-approver)" "drwxr-x--- bursar-approver:bursar-approver"
is "bursard before it is enabled" "$(state bursard.service)" inactive
within getent group bursar-admin >/dev/null || fail "there is no group bursar-admin"
within systemd-analyze verify bursard.service bursar-homed.socket bursar-homed.service bursar-webhook.service bursar-approver.service 2>"$work/verify" || true
! grep -v 'man bursar' "$work/verify" | grep -E 'bursar' >&2 || fail "systemd-analyze verify finds faults in the units"
ends 0 bursar check
ends 64 bursar --bad-option

. tests/first_day.sh
is bursard "$(state bursard.service)" active
is "bursar-homed's socket" "$(state bursar-homed.socket)" active

say "asking bursar-homed, under its unit's restrictions"
# Lets bursar-homed create homes in /home, which needs the capability CAP_CHOWN.
sed -i 's|--prefix /home|--create-prefix /home|' "$system/etc/bursar/homed.env"
within systemctl stop bursar-homed.service
version=$(sed -n 's/^pub const PROTOCOL_VERSION: u32 = \([0-9]*\);$/\1/p' crates/protocol/src/lib.rs)
asked() {
    local user=$1 work=$2 target='{"home":"/home/alice","uid":3001,"gid":3000,"groups":[],"kubeconfig":".kube/config"}'
    within runuser -u "$user" -- perl -MIO::Socket::UNIX -e '
        my $homed = IO::Socket::UNIX->new(Peer => "/run/bursar/homed.sock") or die "homed.sock: $!\n";
        print $homed "$ARGV[0]\n"; $homed->flush; print scalar <$homed>' "{\"version\":$version,\"target\":$target,\"work\":$work}" 2>&1
}
for request in '{"ensure_home":{"create":true,"skeleton":true}}' '{"test_write":{"replace_unparsable":false}}'; do
    answer=$(asked bursar "$request") || true
    grep -q '"Ok"' <<<"$answer" || { within journalctl --no-pager -u bursar-homed >&2; fail "$request: $answer"; }
done
is "a home that bursar-homed made" "$(within stat -c '%A %u:%g' /home/alice)" "drwx------ 3001:3000"
is "a folder that it made in it" "$(within stat -c '%A %u:%g' /home/alice/.kube)" "drwx------ 3001:3000"
is bursar-homed "$(state bursar-homed.service)" active
within systemd-analyze security --no-pager --threshold=20 bursar-homed.service >"$work/security" ||
    { tail -n 1 "$work/security" >&2; fail "bursar-homed.service is exposed by more than 2.0"; }
answer=$(asked nobody '{"test_write":{"replace_unparsable":false}}') && fail "bursar-homed serves user nobody: $answer"

say "asking bursard"
is "homed's socket" "$(mode /run/bursar-homed/homed.sock)" "srw------- bursar:bursar"
is "the control socket" "$(mode /run/bursar/control.sock)" "srw-rw-rw- bursar:bursar"
ends 0 bursar sync
ends 75 bursar sync --once
within useradd --groups bursar reader
within useradd stranger
ends 0 runuser -u reader -- bursar status
ends 0 runuser -u reader -- bursar users
grep -q alice "$work/output" || fail "alice is not in the ledger"
is "sqlite3 by a reader" "$(within runuser -u reader -- sqlite3 /var/lib/bursar/ledger.db "SELECT name FROM users WHERE name = 'alice'")" alice
ends 77 runuser -u reader -- bursar hold tool foo --reason x
ends 77 runuser -u stranger -- bursar status

say "reloading"
ends 0 systemctl reload bursard.service
within sh -c 'echo "[lifecycl]" >>/etc/bursar/bursar.toml'
ends 1 systemctl reload bursard.service
is "bursard after a reload with a wrong file" "$(state bursard.service)" active
differs() { within bursar status | grep -q "differs from the configuration in force"; }
soon "bursar status reports the changed file" differs
ends 0 bursar hold tool foo --reason audit
ends 0 bursar release tool foo
within sed -i '/^\[lifecycl\]$/d' /etc/bursar/bursar.toml
ends 0 systemctl reload bursard.service

ends 0 bursar ledger backup /root/backup.db
is "a backup by root" "$(mode /root/backup.db)" "-rw------- root:root"
ends 0 bursar ledger verify --ledger /root/backup.db

say "upgrading, stopping, purging"
pid() { within systemctl show -P MainPID bursard.service; }
before=$(pid)
within dpkg -i /bursar.deb >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "the upgrade by dpkg -i failed"; }
is "bursard after the upgrade" "$(state bursard.service)" active
is "bursard's process after the upgrade, before bursar init" "$(pid)" "$before"
grep -q 'bursar init' "$work/dpkg.log" || { cat "$work/dpkg.log" >&2; fail "the upgrade does not name bursar init"; }
ends 0 systemctl restart bursard.service
within systemctl stop bursard.service
is "the result of stopping" "$(within systemctl show -P Result bursard.service)" success
is "bursar-homed's socket outlives bursard" "$(state bursar-homed.socket)" active
ends 0 bursar sync --once
is "files of root in the state folder" "$(within find /var/lib/bursar ! -user bursar)" ""
within dpkg --purge bursar >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "dpkg --purge failed"; }
is "units after the purge" "$(within systemctl list-unit-files --no-legend 'bursar*' | grep -v transient || true)" ""
within test -e /var/lib/bursar/ledger.db || fail "the purge removed the ledger"
say "all checks passed"
