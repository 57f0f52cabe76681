//! `bursar report`: the page is well formed whatever the directory contains, and its file is written completely or not
//! at all.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Output;

use bursar_testkit::ldif::person_ldif;
use serde_json::Value;

use crate::world::{World, all_is_well, stderr};

const HOSTILE: &str = "<script>alert('x')</script>&\"";

fn report(world: &World, words: &[&str]) -> Output {
    world.command(&["report"]).args(words).output().expect("bursar is built")
}

/// Checks that every tag is a known one and is closed in order, and that nothing else contains a `<` or a bare `&`.
fn must_be_well_formed(html: &str) {
    let body = html.strip_prefix("<!DOCTYPE html>\n").expect("the page is HTML");
    let mut open: Vec<&str> = Vec::new();
    for (text, rest) in body.split('<').skip(1).filter_map(|tag| tag.split_once('>')) {
        let name = text.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        let known = "html head meta title style body h1 h2 p nav a code div table thead tbody tr th td";
        assert!(known.split(' ').any(|one| one == name), "<{text}>");
        match (text.strip_prefix('/'), text.ends_with('/')) {
            (Some(end), _) => assert_eq!(open.pop(), Some(end)),
            (None, true) => {}
            (None, false) => open.push(name),
        }
        for entity in rest.split('&').skip(1) {
            let known = ["lt;", "gt;", "amp;", "quot;", "#39;"];
            assert!(known.iter().any(|one| entity.starts_with(one)), "&{entity}");
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

fn section<'v>(page: &'v Value, id: &str) -> &'v Value {
    let mut sections = page["sections"].as_array().into_iter().flatten();
    &sections.find(|section| section["id"] == id).expect(id)["rows"]
}

#[test]
fn hostile_names_stay_text() {
    let mut world = World::new("page");
    world.tool("foo", 63_601, &["page-ann"]);
    world.person("page-ann", 63_602);
    world.group("k8s-admins", &["page-ann"]);
    // `<script>alert('x')</script>&"`, encoded for LDIF and for a DN. One person has this text as mail address; another
    // has it as name and is rejected.
    let (ldif, dn) = (":: PHNjcmlwdD5hbGVydCgneCcpPC9zY3JpcHQ+JiI=", "\\3Cscript\\3Ealert('x')\\3C/script\\3E&\\22");
    let ben = person_ldif(&world.base, "page-ben", 63_603);
    world.add(&ben.replace("mail: page-ben@example.org", &format!("mail{ldif}")));
    let cat = person_ldif(&world.base, "page-cat", 63_604).replace("uid=page-cat", &format!("uid={dn}"));
    world.add(&cat.replace("uid: page-cat", &format!("uid{ldif}")));
    all_is_well(&world.cycle());
    world.stop();
    for words in [
        ["quota", "set", "tool", "foo", "pods=20", "--until", "2999-01-01", "--ticket", HOSTILE],
        ["exception", "set", "tool", "foo", "images", "--until", "2999-01-01", "--reason", HOSTILE],
    ] {
        let output = world.run(&words);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    all_is_well(&world.cycle());
    world.stop();

    let out = world.folder.join("report.html");
    let written = report(&world, &["--out", &out.display().to_string()]);
    assert!(written.status.success(), "{}", stderr(&written));
    let html = std::fs::read_to_string(&out).expect("the page was written");
    assert_eq!(std::fs::metadata(&out).expect("the page was written").permissions().mode() & 0o777, 0o600);
    must_be_well_formed(&html);
    let shown = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;";
    assert!(html.matches(shown).count() >= 4, "a mail address, a rejected name, a ticket and a reason");
    assert!(!html.contains("<script") && !html.contains("http:") && !html.contains("https:"));
    let foo =
        format!("<tr><td>foo</td><td>63601</td><td>{} (test)</td><td>tool</td><td>active</td>", world.namespace("foo"));
    assert!(html.contains(&foo), "{html}");

    let page: Value =
        serde_json::from_slice(&report(&world, &["--out", "-", "--json"]).stdout).expect("bursar prints JSON");
    assert_eq!(
        (&page["site"], section(&page, "administrators")[0]["account"].as_str()),
        (&Value::from("page"), Some("user:page-ann"))
    );
    let people = section(&page, "people").as_array().expect("the section is a list");
    assert!(people.iter().any(|person| person["mail"] == HOSTILE), "{people:?}");
    let why = section(&page, "rejected")[0]["why"].as_str().expect("a rejected entry has a reason");
    assert!(why.contains("<script>"), "the name: {why}");
    assert_eq!(section(&page, "tools")[0]["people"], "user:page-ann");
    assert_eq!(
        (&section(&page, "overrides")[0]["ticket"], &section(&page, "exceptions")[0]["reason"]),
        (&Value::from(HOSTILE), &Value::from(HOSTILE))
    );
    assert!(
        section(&page, "actions")
            .as_array()
            .is_some_and(|actions| actions.iter().any(|row| row["action"] == "created"))
    );
    assert_eq!(page["head"].as_str().map(str::len), Some(64));
    let head = page["head"].as_str().expect("the page has a head");
    assert!(world.run(&["ledger", "verify", "--head", head]).status.success());
    let printed = report(&world, &["--out", "-"]);
    must_be_well_formed(&String::from_utf8(printed.stdout).expect("the page is UTF-8"));
}

#[test]
fn only_a_regular_file_is_replaced() {
    let site = crate::cli::Site::new();
    site.run("sync --once", 0);
    let path = |name: &str| site.path(name).display().to_string();
    std::fs::write(path("kept"), "kept").expect("the folder is writable");
    symlink(path("kept"), path("link")).expect("the folder is writable");
    for (out, says) in [
        (path("link"), "it is not a regular file"),
        ("/dev/null".to_owned(), "it is not a regular file"),
        (path("state"), "it is not a regular file"),
        (path("nowhere/report.html"), "its folder does not exist"),
    ] {
        let said = site.run(&format!("report --out {out}"), 1);
        assert!(said.contains(says), "{out}: {said}");
    }
    assert_eq!(std::fs::read_to_string(path("kept")).expect("the file is still there"), "kept");
    assert!(!Path::new(&path("nowhere")).exists());
    site.run("report", 64);
    // An older page is replaced, and the temporary file of a killed run is removed.
    std::fs::write(path(".kept.new"), "half").expect("the folder is writable");
    let page = site.json(&format!("report --out {}", path("kept")), 0);
    assert_eq!(section(&page, "rejected")[0]["name"], "toor");
    assert!(std::fs::read_to_string(path("kept")).expect("the page was written").ends_with("</html>\n"));
    assert!(!Path::new(&path(".kept.new")).exists());
}
