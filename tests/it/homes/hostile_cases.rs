//! The cases of `hostile`: how a home is made hostile, and the result of a delivery into it.

use std::ffi::OsStr;
use std::fs::{self, File, hard_link};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};

use super::hostile::Plot;
use super::{UID, make_directory, make_file, names_in};

/// A hostile home.
pub struct Case {
    /// What is hostile about the home.
    pub name: &'static str,
    /// Makes the home hostile.
    pub plant: fn(&mut Plot),
    pub expect: Expect,
}

/// The result of a delivery.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// The delivery is refused with this [`bursar_protocol::HomeError::reason`], and nothing is changed.
    Refused(&'static str),
    /// The delivery succeeds, and then this check passes.
    Written(fn(&Plot)),
}

use Expect::{Refused, Written};

const fn case(name: &'static str, expect: Expect, plant: fn(&mut Plot)) -> Case {
    Case { name, plant, expect }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("tests run as root, who may change modes");
}

fn owner(path: &Path, uid: u32) {
    chown(path, Some(uid), Some(uid)).expect("tests run as root, who may change owners");
}

fn node(path: &Path, kind: FileType) {
    rustix::fs::mknodat(CWD, path, kind, Mode::RWXU, rustix::fs::makedev(1, 3))
        .expect("tests run as root, who may make devices");
    owner(path, UID);
}

fn socket(path: &Path) {
    // The path of a socket may have at most 107 bytes, so it is bound through a short link.
    let beside = tempfile::tempdir_in("/tmp").expect("the system allows a temporary folder");
    let short = beside.path().join("s");
    symlink(path.parent().expect("the path has a parent"), &short).expect("the folder is writable");
    drop(
        UnixListener::bind(short.join(path.file_name().expect("the path has a name"))).expect("the folder is writable"),
    );
    owner(path, UID);
}

/// Writes the content as the user's kubeconfig.
fn says(plot: &Plot, content: &[u8]) {
    make_file(&plot.config(), UID, content);
}

fn nothing(_: &Plot) {}

/// All hostile homes.
pub const CASES: &[Case] = &[
    // Symbolic links.
    case("kube is a link to a folder of the user", Refused("symlink"), |plot| {
        make_directory(&plot.home.join("real"), UID);
        symlink("real", plot.home.join(".kube")).expect("the folder is writable");
    }),
    case("kube is a link to a folder of another user", Refused("symlink"), |plot| {
        symlink(&plot.outside, plot.home.join(".kube")).expect("the folder is writable");
    }),
    case("kube is a link to nothing", Refused("symlink"), |plot| {
        symlink("gone", plot.home.join(".kube")).expect("the folder is writable");
    }),
    case("kube is a link to itself", Refused("symlink"), |plot| {
        symlink(".kube", plot.home.join(".kube")).expect("the folder is writable");
    }),
    case("kube is a link into proc", Refused("symlink"), |plot| {
        symlink("/proc/self/cwd", plot.home.join(".kube")).expect("the folder is writable");
    }),
    case("config is a link to a file of the user", Refused("symlink"), |plot| {
        make_file(&plot.home.join("real"), UID, b"");
        symlink("../real", plot.config()).expect("the folder is writable");
    }),
    case("config is a link to a file of another user", Refused("symlink"), |plot| {
        make_file(&plot.outside.join("config"), UID + 1, b"theirs");
        symlink(plot.outside.join("config"), plot.config()).expect("the folder is writable");
    }),
    case("config is a link to a file of the system", Refused("symlink"), |plot| {
        symlink("/etc/shadow", plot.config()).expect("the folder is writable");
    }),
    case("config is a link to nothing", Refused("symlink"), |plot| {
        symlink("../../outside/new", plot.config()).expect("the folder is writable");
    }),
    case("home is a link", Refused("symlink"), |plot| {
        fs::remove_dir(&plot.home).expect("the folder exists");
        symlink("outside", &plot.home).expect("the folder is writable");
    }),
    case("home is beneath a link", Refused("symlink"), |plot| {
        symlink(".", plot.home.with_file_name("link")).expect("the folder is writable");
        plot.target.home = plot.target.home.with_file_name("link").join("home");
    }),
    // Neither regular files nor folders.
    case("config is a pipe", Refused("not-a-regular-file"), |plot| node(&plot.config(), FileType::Fifo)),
    case("config is a socket", Refused("not-a-regular-file"), |plot| socket(&plot.config())),
    case("config is a device", Refused("not-a-regular-file"), |plot| node(&plot.config(), FileType::CharacterDevice)),
    case("config is a disk", Refused("not-a-regular-file"), |plot| node(&plot.config(), FileType::BlockDevice)),
    case("config is a folder", Refused("not-a-regular-file"), |plot| make_directory(&plot.config(), UID)),
    case("kube is a file", Refused("not-a-directory"), |plot| make_file(&plot.home.join(".kube"), UID, b"")),
    case("kube is a pipe", Refused("not-a-directory"), |plot| node(&plot.home.join(".kube"), FileType::Fifo)),
    case("kube is a socket", Refused("not-a-directory"), |plot| socket(&plot.home.join(".kube"))),
    case("kube is a device", Refused("not-a-directory"), |plot| {
        node(&plot.home.join(".kube"), FileType::CharacterDevice);
    }),
    case("home is a file", Refused("not-a-directory"), |plot| {
        fs::remove_dir(&plot.home).expect("the folder exists");
        make_file(&plot.home, UID, b"");
    }),
    case("home is a pipe", Refused("not-a-directory"), |plot| {
        fs::remove_dir(&plot.home).expect("the folder exists");
        node(&plot.home, FileType::Fifo);
    }),
    case("home is beneath a file", Refused("not-a-directory"), |plot| {
        make_file(&plot.home.with_file_name("file"), UID, b"");
        plot.target.home = plot.target.home.with_file_name("file").join("home");
    }),
    // Content.
    case("config is a sparse file of a terabyte", Refused("too-large"), |plot| {
        says(plot, b"");
        File::options()
            .write(true)
            .open(plot.config())
            .expect("the file is writable")
            .set_len(1 << 40)
            .expect("the file system allows sparse files");
    }),
    case("config is a little too large", Refused("too-large"), |plot| says(plot, &vec![b'#'; 1024 * 1024 + 1])),
    case("config would be too large with our entries", Refused("too-large"), |plot| {
        says(plot, &vec![b'#'; 1024 * 1024 - 100]);
    }),
    case("config is nested too deep", Refused("too-complex"), |plot| {
        says(plot, ["x: ", &"[".repeat(50_000), &"]".repeat(50_000)].concat().as_bytes());
    }),
    case("config is a bomb of aliases", Refused("too-complex"), |plot| {
        let levels =
            (1..9).map(|level| format!("l{level}: &l{level} [{}]\n", vec![format!("*l{}", level - 1); 9].join(", ")));
        says(plot, ["l0: &l0 [x]\n".to_owned()].into_iter().chain(levels).collect::<String>().as_bytes());
    }),
    case("config is not YAML", Refused("not-yaml"), |plot| says(plot, b"a: b: c: hunter2\n")),
    case("config is not UTF-8", Refused("not-yaml"), |plot| says(plot, b"a: \xff\xfe\n")),
    case("config is zeros", Refused("not-yaml"), |plot| says(plot, &[0; 4096])),
    case("config is a private key", Refused("not-yaml"), |plot| {
        says(plot, b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==\n-----END OPENSSH PRIVATE KEY-----\n");
    }),
    case("config is a list", Refused("not-yaml"), |plot| says(plot, b"- a\n- b\n")),
    case("config is two documents", Refused("not-yaml"), |plot| says(plot, b"a: 1\n---\nb: 2\n")),
    case("config has a list where it has a mapping", Refused("not-yaml"), |plot| says(plot, b"contexts: {a: 1}\n")),
    case("our context belongs to the user", Refused("foreign-entry"), |plot| {
        says(plot, b"contexts:\n- {name: toolforge, context: {cluster: mine, user: me}}\n");
    }),
    case("our cluster belongs to the user", Refused("foreign-entry"), |plot| {
        says(plot, b"clusters:\n- {name: toolforge, cluster: {server: 'https://mine'}}\n");
    }),
    case("config has an anchor in a list that we edit", Refused("not-yaml"), |plot| {
        says(plot, b"x: &a {token: t}\nusers:\n- {name: me, user: *a}\n");
    }),
    case("config has line breaks of YAML 1.1", Refused("not-yaml"), |plot| {
        says(plot, "# mine\u{2028}clusters: []\nx: \"a\u{85}b\"\n".as_bytes());
    }),
    case("config is indented by tabs", Refused("not-yaml"), |plot| says(plot, b"clusters:\n-\tname: x\n")),
    case("config has a name twice in an entry", Refused("not-yaml"), |plot| {
        says(plot, b"users:\n- name: mine\n  name: bursar-toolforge\n");
    }),
    case(
        "config has thousands of contexts",
        Written(|plot| {
            assert!(fs::read_to_string(plot.config()).expect("the file is readable").contains("name: c2999"));
        }),
        |plot| {
            let entry = |number: usize| format!("- {{name: c{number}, context: {{cluster: c{number}, user: me}}}}\n");
            says(plot, format!("contexts:\n{}", (0..3_000).map(entry).collect::<String>()).as_bytes());
        },
    ),
    case(
        "config has thousands of contexts with our credential",
        Written(|plot| {
            assert!(fs::read_to_string(plot.config()).expect("the file is readable").contains("toolforge-7 "));
        }),
        |plot| {
            let entry = |number: usize| {
                format!("- {{name: toolforge-{number} , context: {{cluster: c{number}, user: bursar-toolforge}}}}\n")
            };
            says(plot, format!("contexts:\n{}", (0..3_000).map(entry).collect::<String>()).as_bytes());
        },
    ),
    case("a lock exists", Refused("in-use"), |plot| {
        says(plot, b"x: 1\n");
        make_file(&plot.kube().join("config.lock"), UID, b"");
    }),
    case("a lock is a folder that is not empty", Refused("in-use"), |plot| {
        says(plot, b"x: 1\n");
        make_directory(&plot.kube().join("config.lock"), UID);
        make_file(&plot.kube().join("config.lock/x"), UID, b"");
        let old = fs::File::open(plot.kube().join("config.lock")).expect("the file is readable");
        old.set_modified(std::time::SystemTime::now() - std::time::Duration::from_mins(5))
            .expect("tests run as root, who may change times");
    }),
    case("a lock is a day old", Written(nothing), |plot| {
        says(plot, b"x: 1\n");
        make_file(&plot.kube().join("config.lock"), UID, b"");
        let old = fs::File::open(plot.kube().join("config.lock")).expect("the file is readable");
        old.set_modified(std::time::SystemTime::now() - std::time::Duration::from_hours(24))
            .expect("tests run as root, who may change times");
    }),
    case("config is empty", Written(nothing), |plot| says(plot, b"")),
    case("config has line ends of Windows", Written(nothing), |plot| says(plot, b"apiVersion: v1\r\nkind: Config\r\n")),
    // Owners, links and modes.
    case("config belongs to another user", Refused("wrong-owner"), |plot| make_file(&plot.config(), UID + 1, b"")),
    case("config belongs to root", Refused("wrong-owner"), |plot| make_file(&plot.config(), 0, b"")),
    case("config is a hard link to a file of another user", Refused("wrong-owner"), |plot| {
        make_file(&plot.outside.join("theirs"), UID + 1, b"theirs");
        hard_link(plot.outside.join("theirs"), plot.config()).expect("the folder is writable");
    }),
    case("config is a hard link to a file of root", Refused("wrong-owner"), |plot| {
        make_file(&plot.outside.join("roots"), 0, b"roots");
        hard_link(plot.outside.join("roots"), plot.config()).expect("the folder is writable");
    }),
    case(
        "config is a hard link to a file of the user",
        Written(|plot| assert_eq!(fs::read(plot.home.join("also")).expect("the file is readable"), b"x-mine: 1\n")),
        |plot| {
            says(plot, b"x-mine: 1\n");
            hard_link(plot.config(), plot.home.join("also")).expect("the folder is writable");
        },
    ),
    case("kube belongs to another user and is open to all", Refused("wrong-owner"), |plot| {
        owner(&plot.kube(), UID + 1);
        mode(&plot.kube(), 0o777);
    }),
    case("kube belongs to root and is sticky", Refused("wrong-owner"), |plot| {
        owner(&plot.kube(), 0);
        mode(&plot.kube(), 0o1777);
    }),
    case("home belongs to another user and is open to all", Refused("wrong-owner"), |plot| {
        owner(&plot.home, UID + 1);
        mode(&plot.home, 0o777);
    }),
    case("home belongs to root", Refused("wrong-owner"), |plot| owner(&plot.home, 0)),
    case("home is requested for another uid", Refused("wrong-owner"), |plot| {
        mode(&plot.home, 0o777);
        plot.target.uid = UID + 1;
    }),
    case("kube is sticky", Written(nothing), |plot| mode(&plot.kube(), 0o1700)),
    case("kube is setgid", Written(nothing), |plot| {
        chown(plot.kube(), Some(UID), Some(UID + 7)).expect("tests run as root, who may change owners");
        mode(&plot.kube(), 0o2770);
    }),
    case("home is setgid", Written(nothing), |plot| {
        chown(&plot.home, Some(UID), Some(UID + 7)).expect("tests run as root, who may change owners");
        mode(&plot.home, 0o2775);
    }),
    case("config is open to all", Written(nothing), |plot| {
        says(plot, b"");
        mode(&plot.config(), 0o666);
    }),
    case("config is setuid", Written(nothing), |plot| {
        says(plot, b"");
        mode(&plot.config(), 0o6755);
    }),
    case("config is read-only", Written(nothing), |plot| {
        says(plot, b"");
        mode(&plot.config(), 0o400);
    }),
    case("config is unreadable", Refused("access-denied"), |plot| {
        says(plot, b"");
        mode(&plot.config(), 0);
    }),
    case("kube is not writable", Refused("access-denied"), |plot| mode(&plot.kube(), 0o500)),
    case("kube cannot be listed", Refused("access-denied"), |plot| mode(&plot.kube(), 0o300)),
    case("kube cannot be entered", Refused("access-denied"), |plot| mode(&plot.kube(), 0o600)),
    case("home cannot be entered", Refused("access-denied"), |plot| {
        plot.kube();
        mode(&plot.home, 0);
    }),
    case("home is not writable", Refused("access-denied"), |plot| mode(&plot.home, 0o500)),
    case("home is in a closed folder", Refused("access-denied"), |plot| {
        mode(plot.home.parent().expect("the path has a parent"), 0o700);
    }),
    // Paths.
    case("home is missing", Refused("missing-home"), |plot| fs::remove_dir(&plot.home).expect("the folder exists")),
    case("home has dots", Refused("not-beneath-prefix"), |plot| plot.target.home.push("../outside")),
    case("home is the prefix", Refused("not-beneath-prefix"), |plot| {
        plot.target.home = plot.target.home.ancestors().nth(2).expect("the path has a prefix").to_owned();
    }),
    case("home is elsewhere", Refused("not-beneath-prefix"), |plot| plot.target.home = "/root".into()),
    case("home is relative", Refused("not-beneath-prefix"), |plot| plot.target.home = "home".into()),
    case("home has a line feed", Refused("bad-path"), |plot| {
        plot.target.home = plot.target.home.with_file_name("a\nerror: all is lost");
        make_directory(&plot.home.with_file_name("a\nerror: all is lost"), UID);
    }),
    case("home has a terminal escape sequence", Refused("bad-path"), |plot| plot.target.home.push("\u{1b}[2J")),
    case("home has a long name", Refused("bad-path"), |plot| plot.target.home.push("x".repeat(300))),
    case("kubeconfig has dots", Refused("bad-path"), |plot| plot.target.kubeconfig = "../outside/config".into()),
    case("kubeconfig is absolute", Refused("bad-path"), |plot| plot.target.kubeconfig = "/etc/passwd".into()),
    case("kubeconfig is a file that a shell reads", Refused("path-not-allowed"), |plot| {
        plot.target.kubeconfig = ".bash_profile".into();
    }),
    case("kubeconfig is a file that sshd reads", Refused("path-not-allowed"), |plot| {
        plot.target.kubeconfig = ".ssh/authorized_keys".into();
    }),
    // Accounts.
    case("uid is that of root", Refused("uid-too-low"), |plot| plot.target.uid = 0),
    case("uid is a system uid", Refused("uid-too-low"), |plot| plot.target.uid = 999),
    case("uid is invalid", Refused("uid-too-low"), |plot| plot.target.uid = u32::MAX),
    case("gid is that of root", Refused("gid-too-low"), |plot| plot.target.gid = 0),
    case("a group is a system group", Refused("gid-too-low"), |plot| plot.target.groups = vec![UID, 42]),
    case("there are too many groups", Refused("bad-request"), |plot| plot.target.groups = vec![UID; 1025]),
    // Other names next to the file.
    case(
        "kube is full of names that are not text",
        Written(|plot| assert_eq!(names_in(&plot.kube()).len(), 304, "{:?}", names_in(&plot.kube()))),
        |plot| {
            for name in [&b"line\nfeed"[..], b"\xff\xfe", b"\x1b[2J"] {
                make_file(&plot.kube().join(OsStr::from_bytes(name)), UID, b"");
            }
            for number in 0..300 {
                make_file(&plot.kube().join(format!("f{number}")), UID, b"");
            }
        },
    ),
    case(
        "a killed worker was here before",
        Written(|plot| assert_eq!(names_in(&plot.kube()), [".bursar-mine", "config"])),
        |plot| {
            make_file(&plot.kube().join(".bursar-0123.tmp"), UID, b"half");
            symlink("../../outside", plot.kube().join(".bursar-4567.tmp")).expect("the folder is writable");
            make_file(&plot.kube().join(".bursar-mine"), UID, b"");
        },
    ),
];
