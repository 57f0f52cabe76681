#!/usr/bin/env bash
# Runs the tests of homes on NFS, with a real nfs-ganesha that squashes root and with Linux's own NFS client. Then runs
# the test of SELinux labels. Most test machines have a kernel without an NFS client and SELinux, so the tests run in a
# small virtual machine, which does not need KVM. Takes six minutes on 2 cores; part of `make soak`.
#
#   tests/nfs.sh          the tests
#   tests/nfs.sh bench    the benchmark of deliveries (benches/homes.rs) with the usual mount options
#
# Needs root. Kernel and SELinux policy are Debian's, kept in ${BURSAR_CACHE:-${XDG_CACHE_HOME:-~/.cache}/bursar}. In
# BURSAR_TEST_SELINUX_POLICY, name a compiled `targeted` policy of Fedora to test with it instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests/cluster/apt.sh nfs-ganesha nfs-ganesha-vfs qemu-system-x86 busybox-static cpio kmod semodule-utils

say() { echo "nfs: $*" >&2; }
fail() { say "$*"; exit 1; }

work=$(mktemp -d)
ganesha=
end() {
    if [ -n "$ganesha" ]; then kill "$ganesha" 2>/dev/null || true; wait "$ganesha" 2>/dev/null || true; fi
    umount "$work/export/full" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

# --- the programs ----------------------------------------------------------------------------------------------------
built() { # name of the program, what cargo is told to build
    "${CARGO:-cargo}" "${@:2}" --locked --no-run --message-format=json 2>/dev/null |
        grep -o "\"executable\":\"[^\"]*/deps/$1-[^\"]*\"" | tail -n 1 | cut -d'"' -f4
}
caching=
# Without KVM, the machine's processor is many times slower than this one, but a worker may use only 5 s of it. So homed
# is always the optimised one.
"${CARGO:-cargo}" build --locked --quiet --profile bench -p bursar-homed || fail "bursar-homed does not build"
if [ "${1:-}" = bench ]; then
    test_program=$(built homes bench -p bursar --bench homes)
    run="$test_program --bench"
else
    test_program=$(built it test -p bursar --test it)
    run="$test_program homes::hostile:: && $test_program homes::nfs:: --ignored --test-threads=1 --nocapture && enforce && $test_program homes::selinux:: --ignored --nocapture"
    # Tests write as root through /mnt/plain. bursar-homed, which uses /mnt/homes, must see these files at once.
    caching=,noac,lookupcache=none
fi
[ -x "$test_program" ] || fail "the programs do not build"
# Profile `bench` builds into folder `release`, next to the folder of the tests.
homed=${test_program%/*/deps/*}/release/bursar-homed
[ -x "$homed" ] || fail "$homed is missing"

# --- the kernel ------------------------------------------------------------------------------------------------------
cache=${BURSAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bursar}/nfs-kernel
if [ ! -e "$cache/made" ]; then
    say "fetching a kernel (once)"
    rm -rf "$cache"
    mkdir -p "$cache/unpacked"
    image=$(apt-cache search --names-only '^linux-image-6\.1\.0-[0-9]+-cloud-amd64$' | awk '{ print $1 }' | sort -V | tail -n 1)
    (cd "$work" && apt-get download "$image" >/dev/null 2>&1) || fail "cannot fetch a kernel"
    dpkg-deb -x "$work"/linux-image-*.deb "$cache/unpacked"
    /sbin/depmod -b "$cache/unpacked" "$(basename "$cache"/unpacked/lib/modules/*)"
    touch "$cache/made"
fi
policy=${BURSAR_TEST_SELINUX_POLICY:-$cache/policy}
domain=unconfined_service_t
if [ "$policy" = "$cache/policy" ]; then
    # Debian's policy starts services in another domain than Fedora's.
    domain=initrc_t
    if [ ! -e "$policy" ]; then
        (cd "$work" && apt-get download selinux-policy-default >/dev/null 2>&1) || fail "cannot fetch an SELinux policy"
        dpkg-deb -x "$work"/selinux-policy-default_*.deb "$work/policy"
        bunzip2 "$work"/policy/usr/share/selinux/default/*.pp.bz2
        modules=$(ls "$work"/policy/usr/share/selinux/default/*.pp | grep -v '/base.pp$')
        # shellcheck disable=SC2086
        semodule_link -o "$work/linked" "$work/policy/usr/share/selinux/default/base.pp" $modules >/dev/null 2>&1
        semodule_expand -a -c 33 "$work/linked" "$policy"
    fi
fi
kernel=$(echo "$cache"/unpacked/boot/vmlinuz-*)
modules=$(echo "$cache"/unpacked/lib/modules/*)

# --- the server ------------------------------------------------------------------------------------------------------
mkdir -p "$work/export/homes" "$work/export/full" "$work/export/read-only/foo" "$work/run"
truncate -s 8M "$work/small"
mkfs.ext4 -q -m 0 "$work/small"
mount -o loop "$work/small" "$work/export/full"
mkdir -p "$work/export/full/foo/.kube"
chmod 700 "$work/export/full/foo" "$work/export/full/foo/.kube" "$work/export/read-only/foo"
chown -R 52503:52503 "$work/export/full/foo" "$work/export/read-only/foo"
dd if=/dev/zero of="$work/export/full/filler" bs=4k 2>/dev/null || true
mkdir "$work/export/homes/gone"

# A random port, so that two runs at the same time most likely use different ports. On a busy machine, the client renews
# its lease late, and an expired lease causes EIO, so the lease is long.
port=$((20000 + RANDOM % 10000))
export_of() { # id path pseudo access squash
    echo "EXPORT { Export_Id = $1; Path = $2; Pseudo = $3; Access_Type = $4; Squash = $5; SecType = sys; FSAL { Name = VFS; } }"
}
{
    echo "NFS_CORE_PARAM { Protocols = 4; NFS_Port = $port; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false;
          Plugins_Dir = \"/usr/lib/x86_64-linux-gnu/ganesha\"; }"
    echo "NFSV4 { Grace_Period = 5; Lease_Lifetime = 60; RecoveryRoot = \"$work/run\"; Minor_Versions = 0, 1, 2;
          Delegations = false; Only_Numeric_Owners = true; }"
    echo "NFS_KRB5 { Active_krb5 = false; }"
    export_of 1 "$work/export/homes" /homes RW Root_Squash
    export_of 2 "$work/export/homes" /plain RW No_Root_Squash
    export_of 3 "$work/export/full" /full RW Root_Squash
    export_of 4 "$work/export/read-only" /read-only RO Root_Squash
} >"$work/ganesha.conf"
ganesha.nfsd -F -f "$work/ganesha.conf" -L "$work/ganesha.log" -p "$work/ganesha.pid" -N NIV_EVENT >/dev/null 2>&1 &
ganesha=$!
for _ in $(seq 100); do
    ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    kill -0 "$ganesha" 2>/dev/null || { tail "$work/ganesha.log" >&2; fail "nfs-ganesha ended"; }
    sleep 0.2
done

# --- the machine -----------------------------------------------------------------------------------------------------
root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp,etc,mnt/homes,mnt/plain,mnt/full,mnt/read-only,mnt/stale,mnt/first,mnt/second,mnt/labelled,modules}
cp /bin/busybox "$root/bin/busybox"
for program in sh mount umount mkdir insmod ip poweroff rmdir chmod cat dd sleep; do ln -s busybox "$root/bin/$program"; done
put() { mkdir -p "$root/$(dirname "$1")"; cp -L "$1" "$root/$1"; }
for program in "$test_program" "$homed"; do
    put "$program"
    strip --strip-debug "$root/$program"
    for library in $(ldd "$program" | grep -oE '/[^ ]+'); do put "$library"; done
done
# A statically linked kubectl, which a second NFS client runs during deliveries.
cp "$(tests/cluster/build.sh)/kubectl" "$root/kubectl"
cp "$policy" "$root/policy"
number=100
for module in virtio_pci virtio_net nfsv4; do
    for file in $(/sbin/modprobe -d "$cache/unpacked" -S "$(basename "$modules")" --show-depends "$module" 2>/dev/null | awk '$1 == "insmod" { print $2 }'); do
        [ ! -e "$root"/modules/*-"$(basename "$file")" ] || continue
        cp "$file" "$root/modules/$number-$(basename "$file")"
        number=$((number + 1))
    done
done
cat >"$root/init" <<INIT
#!/bin/sh
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs -o mode=1777 tmp /tmp
for module in /modules/*; do insmod \$module || echo "nfs: cannot load \$module"; done
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
options=vers=4.2,port=$port,proto=tcp,clientaddr=10.0.2.15,addr=10.0.2.2,sec=sys$caching
for export in homes plain full read-only; do mount -t nfs4 -o \$options 10.0.2.2:/\$export /mnt/\$export || echo "nfs: cannot mount \$export"; done
# Two clients of one export with the usual caches. They use two minor versions of NFS, so that they share no cache.
usual=port=$port,proto=tcp,clientaddr=10.0.2.15,addr=10.0.2.2,sec=sys
mount -t nfs4 -o vers=4.2,\$usual 10.0.2.2:/homes /mnt/first || echo "nfs: cannot mount first"
mount -t nfs4 -o vers=4.1,\$usual 10.0.2.2:/plain /mnt/second || echo "nfs: cannot mount second"
mount -t nfs4 -o \$options 10.0.2.2:/plain/gone /mnt/stale || echo "nfs: cannot mount stale"
rmdir /mnt/plain/gone
export BURSAR_TEST_KUBECTL=/kubectl BURSAR_TEST_HOMES=/mnt/homes:/mnt/plain BURSAR_TEST_PROGRAMS=$(dirname "$homed") BURSAR_TEST_NFS=/mnt ${BURSAR_SOAK:+BURSAR_SOAK=1} RUST_BACKTRACE=0
export BURSAR_TEST_SELINUX=/mnt/labelled BURSAR_TEST_DOMAIN=$domain
# The kernel takes a policy only in one write.
enforce() {
    mount -t selinuxfs selinuxfs /sys/fs/selinux && dd if=/policy of=/sys/fs/selinux/load bs=32M 2>/dev/null &&
        mount -t tmpfs -o mode=755,rootcontext=system_u:object_r:home_root_t:s0 tmpfs /mnt/labelled
}
$run && echo "nfs: all passed"
poweroff -f
INIT
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initramfs"

say "running"
timeout 1800 qemu-system-x86_64 -machine q35 -cpu max -smp 2 -m 1536 -display none -serial stdio -monitor none -no-reboot \
    -kernel "$kernel" -initrd "$work/initramfs" -append 'console=ttyS0 quiet panic=-1 lsm=selinux' \
    -netdev user,id=n0 -device virtio-net-pci,netdev=n0 </dev/null | tee "$work/console" | grep -aE '^(test |nfs: |deliveries|failures|thread|[0-9]+ contexts|labels |  [a-z])' >&2 || true
grep -aq '^nfs: all passed' "$work/console" || { tail -n 60 "$work/console" >&2; fail "a test failed on NFS"; }
