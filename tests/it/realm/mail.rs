//! The mail that asks people to perform their required actions. Bursar tries until a mail server accepts the mail, and
//! then never sends it again.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bursar_testkit::ready::{DEADLINE, poll};
use serde_json::json;

use super::{RIGHTS, SECRET, WORKSPACES, connection, realm, user, world};
use crate::world::all_is_well;

/// An SMTP server (RFC 5321) that stores mails, and refuses them until it is open.
struct Mails {
    port: u16,
    open: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<String>>>,
}

impl Mails {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the system has a free port");
        let port = listener.local_addr().expect("a listener has an address").port();
        let mails = Self { port, open: Arc::default(), kept: Arc::default() };
        let (open, kept) = (Arc::clone(&mails.open), Arc::clone(&mails.kept));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (open, kept) = (Arc::clone(&open), Arc::clone(&kept));
                std::thread::spawn(move || serve(stream, &open, &kept));
            }
        });
        mails
    }
}

/// Serves one connection until the client closes it.
fn serve(stream: TcpStream, open: &AtomicBool, kept: &Mutex<Vec<String>>) -> Option<()> {
    let mut answers = stream.try_clone().ok()?;
    let mut answer = move |text: &str| answers.write_all(format!("{text}\r\n").as_bytes()).ok();
    let mut lines = BufReader::new(stream).lines();
    answer("220 mail")?;
    let mut to = String::new();
    while let Some(Ok(line)) = lines.next() {
        match line.to_uppercase().split([' ', ':']).next().unwrap_or_default() {
            "RCPT" if !open.load(Ordering::Relaxed) => answer("451 try again later")?,
            "RCPT" => {
                to = line;
                answer("250 ok")?;
            }
            "DATA" => {
                answer("354 go on")?;
                lines.by_ref().map_while(Result::ok).find(|line| line == ".")?;
                kept.lock().expect("no thread panics with the lock").push(to.clone());
                answer("250 ok")?;
            }
            "QUIT" => {
                answer("221 bye")?;
                return Some(());
            }
            _ => answer("250 ok")?,
        }
    }
    Some(())
}

#[test]
fn a_mail_is_repeated_until_it_is_accepted_and_then_not_sent_again() {
    let realm = realm("rlmail", &[], &RIGHTS);
    let mails = Mails::start();
    let smtp = json!({"host": "127.0.0.1", "port": mails.port.to_string(), "from": "sso@example.org"});
    realm.ask("PUT", "", &json!({"smtpServer": smtp}));
    let own = connection(&realm, &realm.server.url, SECRET);
    let required = "required_actions = [\"UPDATE_PASSWORD\", \"VERIFY_EMAIL\"]\nmail = true\n";
    let mut world = world("rlmail", &format!("[realm]\nclient = \"{WORKSPACES}\"\n{own}{required}"));
    world.person("rlmail-a", 64_201);
    world.person("rlmail-b", 64_202);

    let report = world.cycle();
    let [failing] = report.failing.as_slice() else { panic!("expected one failing mail: {report:#?}") };
    assert_eq!((failing.step.as_str(), failing.cluster.as_str()), ("realm mail", "realm:rlmail"));
    assert!(failing.reason.contains("it is sent again until it is accepted"), "{}", failing.reason);
    assert_eq!(user(&realm, "rlmail-b")["enabled"], true, "nothing else waits for the mail");
    let why = world.rows("SELECT reason FROM failing");
    assert!(why[0]["reason"].as_str().is_some_and(|why| why.contains("Failed to send")), "{why:?}");

    mails.open.store(true, Ordering::Relaxed);
    let all = || mails.kept.lock().expect("no thread panics with the lock").len();
    let told = poll(DEADLINE, || {
        world.cycle();
        all() == 2
    });
    assert!(told, "{:?}", world.rows("SELECT * FROM failing"));
    let mut to = mails.kept.lock().expect("no thread panics with the lock").clone();
    to.sort();
    assert!(to[0].contains("rlmail-a@example.org") && to[1].contains("rlmail-b@example.org"), "{to:?}");
    let rows = world.rows("SELECT account FROM realm_users WHERE mailed_at IS NOT NULL");
    assert_eq!(rows.len(), 2, "{rows:?}");

    // Neither another cycle nor another daemon sends the mail again.
    for _ in 0..2 {
        world.stop();
        all_is_well(&world.cycle());
    }
    assert_eq!(all(), 2);
}
