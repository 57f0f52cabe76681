//! The hardening of the systemd units, as systemd judges it. Each directive is listed here with its purpose.

use std::path::Path;
use std::process::Command;

const DAEMON: &str = include_str!("../../../systemd/bursard.service");
const HOMED: &str = include_str!("../../../systemd/bursar-homed.service");
const WEBHOOK: &str = include_str!("../../../systemd/bursar-webhook.service");
const APPROVER: &str = include_str!("../../../systemd/bursar-approver.service");
const SOCKET: &str = include_str!("../../../systemd/bursar-homed.socket");
const TMPFILES: &str = include_str!("../../../systemd/tmpfiles.d/bursar.conf");

/// Returns the exposure that `systemd-analyze security` gives a unit, in tenths.
fn exposure(unit: &str) -> u32 {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(unit);
    let arguments = ["security", "--offline=true", "--no-pager"];
    let output =
        Command::new("systemd-analyze").args(arguments).arg(file).output().expect("systemd-analyze is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let level = text.lines().find_map(|line| line.split("Overall exposure level for ").nth(1));
    let number = level.and_then(|level| level.split_whitespace().nth(1)).unwrap_or_else(|| panic!("{text}"));
    number.replace('.', "").parse().unwrap_or_else(|_| panic!("{number}"))
}

/// Directives of all units, with their reasons.
const ALL: [(&str, &str); 16] = [
    ("LimitCORE=0", "a core file would contain the keys that are in memory"),
    ("NoNewPrivileges=yes", "programs that it starts cannot gain rights"),
    ("PrivateDevices=yes", "it needs no devices, which give access to memory and disks"),
    ("PrivateTmp=yes", "it shares no files in /tmp with other programs"),
    ("ProtectKernelTunables=yes", "it changes no setting of the kernel"),
    ("ProtectKernelModules=yes", "it loads no code into the kernel"),
    ("ProtectKernelLogs=yes", "the kernel's log contains kernel addresses"),
    ("ProtectControlGroups=yes", "it cannot give itself more resources"),
    ("ProtectClock=yes", "if the clock jumped, absences would seem longer"),
    ("ProtectHostname=yes", "other programs' logs and certificates contain the name of the host"),
    ("RestrictNamespaces=yes", "in its own user namespace it would be root"),
    ("RestrictRealtime=yes", "it cannot take the CPU from other programs"),
    ("LockPersonality=yes", "an old personality would switch off address randomisation"),
    ("MemoryDenyWriteExecute=yes", "memory that it has written cannot be executed"),
    ("SystemCallArchitectures=native", "the filter of system calls is for one architecture"),
    ("SystemCallFilter=@system-service", "it cannot use system calls that no service needs"),
];

/// Directives of the units that talk to the API server and never run as root.
const ON_THE_NETWORK: [(&str, &str); 7] = [
    ("CapabilityBoundingSet=", "neither it nor a program that it starts has capabilities"),
    ("AmbientCapabilities=", "it inherits no capabilities either"),
    ("ProtectSystem=strict", "it may write only in its own folders"),
    ("ProtectHome=yes", "only bursar-homed works in homes"),
    ("RestrictSUIDSGID=yes", "it cannot create a setuid program"),
    ("RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6", "no raw packets, no netlink"),
    ("SystemCallFilter=~@privileged @resources", "it needs no system calls of root"),
];

const OF_THE_DAEMON: [(&str, &str); 6] = [
    ("Type=notify", "systemd knows when it works"),
    ("User=bursar", "it is not root"),
    ("ExecReload=/usr/bin/bursar check", "a reload fails if the configuration has errors"),
    ("ReadWritePaths=/var/lib/bursar /run/bursar", "these are its own folders"),
    ("ProcSubset=all", "it reads /proc/PID/loginuid of clients of the control socket"),
    ("UMask=0027", "only the group may read the ledger"),
];

/// Directives of the webhook and of the approver, beside their users.
const OF_THE_WEBHOOK: [(&str, &str); 3] = [
    ("ProcSubset=pid", "it needs nothing else of /proc"),
    ("ProtectProc=invisible", "it need not see other users' processes"),
    ("UMask=0077", "it makes no files for others"),
];

const OF_HOMED: [(&str, &str); 12] = [
    ("Type=notify", "systemd knows when it works"),
    (
        "CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_CHOWN CAP_KILL",
        "it becomes a home's owner, and cannot bypass file modes",
    ),
    ("ProtectSystem=full", "homes must stay writable, but not programs and /etc"),
    ("ProtectHome=no", "it works in homes"),
    ("PrivateMounts=yes", "its mounts are invisible to other programs"),
    ("PrivateNetwork=yes", "it runs as root, and only the daemon talks to it"),
    ("IPAddressDeny=any", "no network even if there is no network namespace"),
    ("RestrictAddressFamilies=AF_UNIX", "its only socket is a Unix socket"),
    ("ProcSubset=pid", "it needs nothing else of /proc"),
    ("ProtectProc=invisible", "it need not see other users' processes"),
    ("SystemCallFilter=~@resources", "it cannot take resources from other programs"),
    ("UMask=0077", "only the owner may read the files that it makes"),
];

fn has(unit: &str, (directive, why): (&str, &str)) {
    assert!(unit.lines().any(|line| line == directive), "{directive}: {why}");
}

#[test]
fn each_unit_has_all_its_hardening_directives() {
    for unit in [DAEMON, HOMED, WEBHOOK, APPROVER] {
        for directive in ALL {
            has(unit, directive);
        }
    }
    for unit in [DAEMON, WEBHOOK, APPROVER] {
        for directive in ON_THE_NETWORK {
            has(unit, directive);
        }
    }
    for unit in [WEBHOOK, APPROVER] {
        for directive in OF_THE_WEBHOOK {
            has(unit, directive);
        }
    }
    for directive in OF_THE_DAEMON {
        has(DAEMON, directive);
    }
    // A program with the daemon's user could read the daemon's keys, and the other way round.
    has(WEBHOOK, ("User=bursar-webhook", "it is neither root nor the daemon"));
    has(APPROVER, ("User=bursar-approver", "it is neither root nor the daemon"));
    for directive in OF_HOMED {
        has(HOMED, directive);
    }
    for unit in [DAEMON, HOMED, WEBHOOK, APPROVER] {
        // In a user namespace, every client of a socket would appear as nobody, and uids would be unknown.
        assert!(!unit.contains("PrivateUsers="), "PrivateUsers= breaks the control socket's peer credentials");
    }
    // With RestrictSUIDSGID=, systemd blocks openat2(2), which homed needs for safe paths in homes.
    assert!(!HOMED.lines().any(|line| line.starts_with("RestrictSUIDSGID=")));
}

#[test]
fn the_exposure_of_the_units_is_low() {
    for unit in ["bursar-homed.service", "bursard.service", "bursar-webhook.service", "bursar-approver.service"] {
        assert!(exposure(unit) <= 20, "{unit}");
    }
}

#[test]
fn the_socket_of_homed_is_in_a_folder_of_root() {
    let listens = SOCKET.lines().find_map(|line| line.strip_prefix("ListenStream=")).expect("the unit has a socket");
    let folder = Path::new(listens).parent().and_then(Path::to_str).expect("the path has a parent");
    let made = TMPFILES.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_root = made.filter(|line| line.first() == Some(&"d") && line.get(1) == Some(&folder));
    let owners: Vec<_> = of_root.map(|line| (line[2].to_owned(), line[3].to_owned(), line[4].to_owned())).collect();
    assert_eq!(owners, [("0755".to_owned(), "root".to_owned(), "root".to_owned())], "{folder}");
    assert!(TMPFILES.contains(&format!("/run/bursar/homed.sock  -    -      -      - {listens}")), "{TMPFILES}");
}
