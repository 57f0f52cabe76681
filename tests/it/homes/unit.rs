//! The units, as systemd judges them: each directive that hardens one is named here, with what it is for.

use std::path::Path;
use std::process::Command;

const DAEMON: &str = include_str!("../../../systemd/bursard.service");
const HOMED: &str = include_str!("../../../systemd/bursar-homed.service");
const SOCKET: &str = include_str!("../../../systemd/bursar-homed.socket");
const TMPFILES: &str = include_str!("../../../systemd/tmpfiles.d/bursar.conf");

/// The exposure that `systemd-analyze security` gives a unit, in tenths.
fn exposure(unit: &str) -> u32 {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(unit);
    let arguments = ["security", "--offline=true", "--no-pager"];
    let output = Command::new("systemd-analyze").args(arguments).arg(file).output().expect("systemd-analyze");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let level = text.lines().find_map(|line| line.split("Overall exposure level for ").nth(1));
    let number = level.and_then(|level| level.split_whitespace().nth(1)).unwrap_or_else(|| panic!("{text}"));
    number.replace('.', "").parse().unwrap_or_else(|_| panic!("{number}"))
}

/// What both programs have.
const BOTH: [(&str, &str); 17] = [
    ("LimitCORE=0", "keys are in memory, and a core file would have them"),
    ("NoNewPrivileges=yes", "no program that it starts gets rights that it has not"),
    ("PrivateDevices=yes", "it needs no device, and a device is memory and disks"),
    ("PrivateTmp=yes", "nobody else's files in /tmp, and its own are nobody else's"),
    ("ProtectKernelTunables=yes", "it changes no setting of the kernel"),
    ("ProtectKernelModules=yes", "it loads no code into the kernel"),
    ("ProtectKernelLogs=yes", "addresses of the kernel are in its log"),
    ("ProtectControlGroups=yes", "it gives itself no resources"),
    ("ProtectClock=yes", "a clock that jumps is how absences would grow"),
    ("ProtectHostname=yes", "the name of the host is in logs and certificates of others"),
    ("RestrictNamespaces=yes", "in a namespace of its own it would be root"),
    ("RestrictRealtime=yes", "it stops no other program"),
    ("LockPersonality=yes", "an old personality switches off address randomisation"),
    ("MemoryDenyWriteExecute=yes", "what is written into memory is not run"),
    ("SystemCallArchitectures=native", "the filter of system calls is for one architecture"),
    ("SystemCallFilter=@system-service", "system calls that no service needs"),
    ("Type=notify", "systemd knows when it works"),
];

const OF_THE_DAEMON: [(&str, &str); 12] = [
    ("User=bursar", "it is not root"),
    ("ExecReload=/usr/bin/bursar check", "a wrong file fails the reload"),
    ("CapabilityBoundingSet=", "no capability, whatever it starts"),
    ("AmbientCapabilities=", "none from outside either"),
    ("ProtectSystem=strict", "it writes in its own folders only"),
    ("ReadWritePaths=/var/lib/bursar /run/bursar", "which are these"),
    ("ProtectHome=yes", "homes are bursar-homed's"),
    ("RestrictSUIDSGID=yes", "it leaves no program behind that makes somebody root"),
    ("RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6", "no raw packets, no netlink"),
    ("SystemCallFilter=~@privileged @resources", "what only root calls"),
    ("ProcSubset=all", "who asks at the control socket is named by /proc/PID/loginuid"),
    ("UMask=0027", "the ledger is for the group, and for nobody else"),
];

const OF_HOMED: [(&str, &str); 11] = [
    ("CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_CHOWN CAP_KILL", "becomes the owner, and cannot look past modes"),
    ("ProtectSystem=full", "homes must stay writable, programs and /etc not"),
    ("ProtectHome=no", "homes are its work"),
    ("PrivateMounts=yes", "what is mounted in its place is seen by nobody else"),
    ("PrivateNetwork=yes", "it is root, and speaks to nobody but the daemon"),
    ("IPAddressDeny=any", "the same, where there is no network namespace"),
    ("RestrictAddressFamilies=AF_UNIX", "its one socket"),
    ("ProcSubset=pid", "it needs nothing else of /proc"),
    ("ProtectProc=invisible", "other users' processes are not its business"),
    ("SystemCallFilter=~@resources", "it takes no resources from others"),
    ("UMask=0077", "what it makes is its owner's alone"),
];

fn has(unit: &str, (directive, why): (&str, &str)) {
    assert!(unit.lines().any(|line| line == directive), "{directive}: {why}");
}

#[test]
fn each_unit_has_each_directive_that_hardens_it() {
    for directive in BOTH {
        has(DAEMON, directive);
        has(HOMED, directive);
    }
    for directive in OF_THE_DAEMON {
        has(DAEMON, directive);
    }
    for directive in OF_HOMED {
        has(HOMED, directive);
    }
    for unit in [DAEMON, HOMED] {
        // In a user namespace everybody who asks at a socket is nobody: their uids would not be known.
        assert!(!unit.contains("PrivateUsers="), "PrivateUsers= breaks the control socket's peer credentials");
    }
    // systemd then takes openat2(2) away, without which no path in a home is safe.
    assert!(!HOMED.lines().any(|line| line.starts_with("RestrictSUIDSGID=")));
}

#[test]
fn units_are_exposed_by_no_more_than_what_their_work_needs() {
    assert!(exposure("bursar-homed.service") <= 20);
    assert!(exposure("bursard.service") <= 20);
}

#[test]
fn homeds_socket_lies_in_a_folder_of_roots() {
    let listens = SOCKET.lines().find_map(|line| line.strip_prefix("ListenStream=")).expect("a socket");
    let folder = Path::new(listens).parent().and_then(Path::to_str).expect("a folder");
    let made = TMPFILES.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_root = made.filter(|line| line.first() == Some(&"d") && line.get(1) == Some(&folder));
    let owners: Vec<_> = of_root.map(|line| (line[2].to_owned(), line[3].to_owned(), line[4].to_owned())).collect();
    assert_eq!(owners, [("0755".to_owned(), "root".to_owned(), "root".to_owned())], "{folder}");
    assert!(TMPFILES.contains(&format!("/run/bursar/homed.sock  -    -      -      - {listens}")), "{TMPFILES}");
}
