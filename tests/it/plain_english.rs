//! Checks that comments, messages and documentation contain none of a few words, and no sentence that begins with "Of",
//! because such sentences need a second reading.
//!
//! Only prose is read: comments and messages of Rust, comments of configurations, units and scripts, the alerts, and
//! Markdown without its code. Texts that cannot change any more (LICENSE, released migrations) are not read.

use std::fs;
use std::path::{Path, PathBuf};

/// The words that are not allowed, each with what to write instead.
const WORDS: [(&str, &str); 6] = [
    ("whoever", "hides the actor; name it: the caller, an administrator, an account that ..."),
    ("whomever", "hides the actor; name it: the caller, an administrator, an account that ..."),
    ("anew", "is archaic; write `again`, or the verb: rebuild, recreate, restart, renew"),
    ("thereof", "is archaic; name the thing"),
    ("is of", "hides the relation; write `belongs to`, `comes from`, `has`"),
    ("are of", "hides the relation; write `belong to`, `come from`, `have`"),
];

const HEAD: (&str, &str) = ("Of", "begins a sentence without its subject; begin with the subject and its verb");

/// Returns the paths of all files with prose, sorted.
fn files(root: &Path) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is readable") {
            let path = entry.expect("the folder is readable").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if is_read(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn is_read(path: &Path) -> bool {
    let is_in = |folders: &[&str]| folders.iter().any(|folder| path.parent().is_some_and(|own| own.ends_with(folder)));
    match extension(path) {
        "rs" | "md" | "sh" | "service" | "socket" | "env" => true,
        "toml" => is_in(&["config", "config/examples", "packaging"]),
        "yml" => is_in(&["packaging/prometheus"]),
        // The scripts of the Debian package.
        "" => is_in(&["packaging/deb"]),
        _ => false,
    }
}

/// Returns the lines that may be prose, with their numbers and without the marks of comments.
fn lines<'t>(extension: &str, text: &'t str) -> Vec<(usize, &'t str)> {
    let numbered = (1..).zip(text.lines());
    match extension {
        "rs" => prose(text).comments,
        "md" => numbered.collect(),
        // The indentation of YAML does not mark code.
        "yml" => numbered.map(|(at, line)| (at, unmarked(line.trim_start()))).collect(),
        _ => {
            let commented =
                numbered.map(|(at, line)| (at, line.trim_start())).filter(|(_, line)| line.starts_with('#'));
            commented.map(|(at, line)| (at, unmarked(line))).collect()
        }
    }
}

/// The prose in code, with the number of each first line.
#[derive(Default)]
struct Prose<'t> {
    /// Comments, also those after code. The code has no `/* */`.
    comments: Vec<(usize, &'t str)>,
    /// Strings of at least [`MESSAGE_WORDS`] words.
    messages: Vec<(usize, &'t str)>,
}

/// Shorter strings are names, keys and values more often than sentences.
const MESSAGE_WORDS: usize = 3;

fn prose(code: &str) -> Prose<'_> {
    let (mut found, mut number, mut rest) = (Prose::default(), 1, code);
    while let Some(at) = rest.find(['/', '"', '\'', 'r']) {
        number += newlines(&rest[..at]);
        rest = &rest[at..];
        let length = if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            found.comments.push((number, unmarked(&rest[..end])));
            end
        } else {
            let length = literal(rest);
            if rest.starts_with('"') && rest[..length].split_whitespace().count() >= MESSAGE_WORDS {
                found.messages.push((number, rest[..length].trim_matches('"')));
            }
            length
        };
        number += newlines(&rest[..length]);
        rest = &rest[length..];
    }
    found
}

/// Returns the length of the string or character literal at the beginning of `code`; 1 if there is none.
fn literal(code: &str) -> usize {
    let inner = &code[1..];
    let hashes = inner.len() - inner.trim_start_matches('#').len();
    let end = if code.starts_with('r') && inner[hashes..].starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        inner[hashes + 1..].find(&end).map(|at| hashes + 1 + at + end.len())
    } else if code.starts_with('"') {
        let mut escaped = false;
        let is_end = |c: char| {
            let is_end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            is_end
        };
        inner.find(is_end).map(|at| at + 1)
    } else if code.starts_with("'\\") {
        inner[2..].find('\'').map(|at| at + 3)
    } else if code.starts_with('\'') {
        // A lifetime has no second quote after its first character.
        let length = inner.chars().next().map_or(0, char::len_utf8);
        inner[length..].starts_with('\'').then_some(length + 1)
    } else {
        None
    };
    1 + end.unwrap_or(0)
}

fn unmarked(comment: &str) -> &str {
    let text = comment.trim_start_matches(['/', '#']);
    let text = text.strip_prefix('!').unwrap_or(text);
    text.strip_prefix(' ').unwrap_or(text)
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

/// Joins lines into paragraphs, each with the number of its first line. Blocks of code (fenced, or indented by four)
/// are left out.
fn paragraphs(lines: Vec<(usize, &str)>) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut last, mut is_code) = (None, false);
    for (number, line) in lines {
        let follows = last == Some(number - 1);
        last = None;
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.trim().is_empty() && (follows || !line.starts_with("    ")) {
            match found.last_mut() {
                Some((_, paragraph)) if follows => {
                    paragraph.push('\n');
                    paragraph.push_str(line);
                }
                _ => found.push((number, line.to_owned())),
            }
            last = Some(number);
        }
    }
    found
}

/// Returns for each finding the line, the word and what to write instead.
fn findings(extension: &str, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found: Vec<_> =
        paragraphs(lines(extension, text)).iter().flat_map(|(first, text)| in_paragraph(*first, text)).collect();
    if extension == "rs" {
        // A backslash joins two lines of a message.
        let messages = prose(text).messages.into_iter().map(|(first, text)| (first, text.replace("\\\n", "\n")));
        found.extend(messages.flat_map(|(first, text)| in_paragraph(first, &text)));
    }
    found
}

fn in_paragraph(first: usize, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let prose: String = (0..)
        .zip(text.split('`'))
        .map(|(at, part)| if at % 2 == 0 { part.to_owned() } else { ["`", &"\n".repeat(newlines(part)), "`"].concat() })
        .collect();
    let words: Vec<(usize, &str)> = (first..)
        .zip(prose.split('\n'))
        .flat_map(|(number, line)| line.split_whitespace().map(move |word| (number, word)))
        .collect();
    let mut found = Vec::new();
    for (at, &(number, word)) in words.iter().enumerate() {
        let next = words.get(at + 1).map_or("", |&(_, next)| next);
        let (one, two) = (bare(word), bare(&format!("{word} {next}")));
        for (banned, instead) in WORDS {
            if one == banned || two == banned {
                found.push((number, banned, instead));
            }
        }
        // After the end of a sentence, a colon, the mark of a list or a title, or the border of a table.
        let is_head = at == 0 || words[at - 1].1.ends_with(['.', '!', '?', ':', ';', '-', '*', '#', '|']);
        if is_head && word == HEAD.0 && next.trim_end_matches(',') != "course" {
            found.push((number, HEAD.0, HEAD.1));
        }
    }
    found
}

/// Returns the text in lower case, without the punctuation around it.
fn bare(text: &str) -> String {
    let text = text.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    text.strip_suffix("'s").unwrap_or(&text).to_owned()
}

#[test]
fn comments_and_documents_are_in_plain_english() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = files(root);
    assert!(files.len() > 500, "only {} files are found", files.len());
    let mut wrong = Vec::new();
    for path in files {
        let name = path.strip_prefix(root).expect("every file is below the root").display();
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        if path.ends_with(file!()) {
            // Its tests quote what the checker finds.
            continue;
        }
        for (line, word, instead) in findings(extension(&path), &text) {
            wrong.push(format!("{name}:{line}: {word:?} {instead}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn words_are_found_in_comments_and_messages_and_not_in_code() {
    let code = r##"//! Whoever's
/// it: Of what is read.
fn f() { let a = "\"// anew"; } // (thereof)
/// A key is
/// of `anew`.
const B: &str = r#"
// whomever "#; // Of course
const C: [char; 2] = ['"', '\'']; // made anew, is, of
fn g<'a>(a: &'a str) -> &'a str { a / "whoever" }
fn h() -> String { format!("{} goes to \
    whoever asks", 1) }
"##;
    let found: Vec<_> = findings("rs", code).into_iter().map(|(line, word, _)| (line, word)).collect();
    assert_eq!(found, [(1, "whoever"), (2, "Of"), (3, "thereof"), (4, "is of"), (8, "anew"), (11, "whoever")]);
}

#[test]
fn words_are_found_in_documents_and_not_in_their_code() {
    let document = "# Of a title\n\nIt is of `x`. Of\ncourse, of it.\n\n    whoever\n\n```\nanew\n```\n- Of a list\n| a | Of b |\n\
                    the `whomever\nthereof` are\nof";
    let found: Vec<_> = findings("md", document).into_iter().map(|(line, word, _)| (line, word)).collect();
    assert_eq!(found, [(1, "Of"), (3, "is of"), (11, "Of"), (12, "Of"), (14, "are of")]);
    let settings = findings("toml", "# anew\nkey = \"x\" # whoever\n## Of it\n");
    assert_eq!(settings.iter().map(|found| found.0).collect::<Vec<_>>(), [1, 3]);
    let script = findings("sh", "echo anew\n    # anew\n");
    assert_eq!(script.iter().map(|found| found.0).collect::<Vec<_>>(), [2]);
    let alerts = findings("yml", "# Of it\n\n      summary: it is made anew\n      description: Of it\n");
    assert_eq!(alerts.iter().map(|found| found.0).collect::<Vec<_>>(), [1, 3, 4]);
}
