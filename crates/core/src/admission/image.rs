//! Checks the registries of images. References are parsed as container runtimes parse them.

use std::fmt;

use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, field, quoted, text};
use super::pod::{Container, Pod};
use super::tenant::Tenant;
use crate::rules::Mode;

/// The end of the reason for a refusal, if the class allows no images at all.
pub const NO_IMAGES: &str = "may run no images";

/// The longest text that is parsed. A name has at most 255 characters, a tag 128, a digest 135.
const LONGEST: usize = 1024;
/// The longest path of an image within its registry.
const LONGEST_PATH: usize = 255;
const LONGEST_TAG: usize = 128;
/// The algorithms of digests, with the number of their hexadecimal digits.
const DIGESTS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// An image reference with the runtimes' defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reference {
    /// Registry and path, such as `docker.io/library/nginx`.
    name: String,
    has_digest: bool,
}

/// Why a text is not an image reference that can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BadReference {
    TooLong,
    NotAscii,
    Registry,
    Path,
    Tag,
    Digest,
    UpperCase,
    LocalId,
}

impl fmt::Display for BadReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "it is too long",
            Self::NotAscii => "it has letters beyond ASCII",
            Self::Registry => "its registry is malformed",
            Self::Path => "its path is malformed",
            Self::Tag => "its tag is malformed",
            Self::Digest => "its digest is malformed",
            Self::UpperCase => "registry and path must be in lower case",
            Self::LocalId => "it could be the id of an image that the node already has",
        })
    }
}

/// Checks the images of containers, and images that are mounted as volumes.
pub(super) fn check(
    pod: &Pod<'_>,
    containers: &[Container<'_>],
    tenant: &Tenant<'_>,
    decision: &mut Decision,
) -> Result<(), Malformed> {
    if tenant.rules.images.mode == Mode::Off {
        return Ok(());
    }
    let mut found = |who: &dyn Fn() -> String, image: &str| {
        if let Err((why, remedy)) = judged(image, tenant) {
            let what = format!("{} has the image {}", who(), quoted(image));
            decision.found(tenant.rules.images.mode, Finding { rule: Rule::Images, what, why, remedy });
        }
    };
    for container in containers {
        let is_same = container.old.is_some_and(|old| field(old, "image") == field(container.value, "image"));
        if !is_same {
            found(&|| container.who(), text(container.value, "image")?);
        }
    }
    for volume in pod.changed_volumes()? {
        if let Some(image) = field(volume, "image") {
            let name = text(volume, "name")?;
            found(&|| format!("volume {}", quoted(name)), text(image, "reference")?);
        }
    }
    Ok(())
}

fn judged(image: &str, tenant: &Tenant<'_>) -> Result<(), (String, String)> {
    let rules = &tenant.rules.images;
    let reference = parse(image).map_err(|error| {
        (format!("that is not an image reference ({error})"), "write registry/path:tag, in lower case".to_owned())
    })?;
    let mut allowed = rules.allow.iter().filter_map(|allowed| tenant.fill(allowed));
    let name = &reference.name;
    if !allowed.any(|allowed| is_within(name, &allowed)) {
        let allowed: Vec<String> = rules.allow.iter().filter_map(|allowed| tenant.fill(allowed)).collect();
        let why = match allowed.as_slice() {
            [] => format!("{} {NO_IMAGES}", tenant.who()),
            _ => format!("{} may run images of {}", tenant.who(), allowed.join(", ")),
        };
        return Err((why, "push the image there and use that name".to_owned()));
    }
    if rules.digest && !reference.has_digest {
        return Err(("an image must be named by its digest".to_owned(), format!("write {name}@sha256:…")));
    }
    Ok(())
}

/// Whether `name` is `allowed` or beneath it. `registry.example.org.evil.com` is not beneath `registry.example.org`.
fn is_within(name: &str, allowed: &str) -> bool {
    let allowed = allowed.trim_end_matches('/');
    !allowed.is_empty() && name.strip_prefix(allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether an allow-list may contain this text: `registry[:port][/path]` in lower case, with a registry that a
/// reference can name.
#[must_use]
pub fn is_place(text: &str) -> bool {
    let plain = text.trim_end_matches('/').replace("{name}", "a");
    let registry = plain.split('/').next().unwrap_or_default();
    parse(&format!("{plain}/a")).is_ok_and(|reference| reference.name.split('/').next() == Some(registry))
}

/// Parses a reference as the runtimes do, with their defaults (`docker.io`, `library/`).
///
/// The grammar is that of `github.com/distribution/reference`. This parser also rejects texts that two parsers could
/// read differently: letters beyond ASCII, upper case outside the tag, a registry that is not a host, and ids of
/// images on the node. It uses no regular expression, because that takes a hundred times as long.
fn parse(image: &str) -> Result<Reference, BadReference> {
    if image.len() > LONGEST {
        return Err(BadReference::TooLong);
    }
    if !image.is_ascii() {
        return Err(BadReference::NotAscii);
    }
    let (rest, digest) = image.split_once('@').map_or((image, None), |(rest, digest)| (rest, Some(digest)));
    // A colon before a slash belongs to the port.
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    let is_upper = |text: &str| text.bytes().any(|byte| byte.is_ascii_uppercase());
    if is_upper(name) || digest.is_some_and(is_upper) {
        return Err(BadReference::UpperCase);
    }
    if !tag.is_none_or(is_tag) {
        return Err(BadReference::Tag);
    }
    if !digest.is_none_or(is_digest) {
        return Err(BadReference::Digest);
    }
    // containerd reads `sha256:…` as the id of an image that the node already has, even if another tenant pulled it.
    let start = name.split(':').next().unwrap_or_default();
    if DIGESTS.iter().any(|(algorithm, _)| *algorithm == start) || is_hex(start, 64) {
        return Err(BadReference::LocalId);
    }
    let (registry, path) = match name.split_once('/') {
        Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => (first, path),
        _ => ("docker.io", name),
    };
    if !is_registry(registry) {
        return Err(BadReference::Registry);
    }
    let registry = if registry == "index.docker.io" { "docker.io" } else { registry };
    let library = if registry == "docker.io" && !path.contains('/') { "library/" } else { "" };
    if !path.split('/').all(is_part) || library.len() + path.len() > LONGEST_PATH {
        return Err(BadReference::Path);
    }
    Ok(Reference { name: format!("{registry}/{library}{path}"), has_digest: digest.is_some() })
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= LONGEST_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || byte == b'.' || byte == b'-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    DIGESTS.iter().any(|(own, digits)| *own == algorithm && is_hex(hex, *digits))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether the text is a host in lower case, optionally with a port.
fn is_registry(text: &str) -> bool {
    let (host, port) = text.split_once(':').unwrap_or((text, "0"));
    let is_label = |label: &str| is_framed(label) && label.bytes().all(|byte| byte == b'-' || is_lower(byte));
    host.split('.').all(is_label) && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the text consists of words in lower case with `.`, `_`, `__` or dashes between them.
fn is_part(text: &str) -> bool {
    let is_gap = |gap: &str| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|byte| byte == b'-');
    is_framed(text) && text.split(|letter: char| letter.is_ascii() && is_lower(letter as u8)).all(is_gap)
}

/// Whether the text begins and ends with a small letter or a digit.
fn is_framed(text: &str) -> bool {
    let (first, last) = (text.bytes().next(), text.bytes().next_back());
    first.is_some_and(is_lower) && last.is_some_and(is_lower)
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(image: &str) -> String {
        match parse(image) {
            Ok(reference) => reference.name.replacen('/', " ", 1),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn references_are_read_as_the_runtimes_read_them() {
        assert_eq!(read("nginx"), "docker.io library/nginx");
        assert_eq!(read("index.docker.io/nginx"), "docker.io library/nginx");
        assert_eq!(read("registry.example.org/x"), "registry.example.org x");
        assert_eq!(
            read("registry/x"),
            "docker.io registry/x",
            "without a dot or a port, the first part is not a registry"
        );
        assert_eq!(read("registry:5000/x:1"), "registry:5000 x");
        assert_eq!(read("localhost/x"), "localhost x");
        assert_eq!(
            read("registry.example.org:5000"),
            "docker.io library/registry.example.org",
            "the number is a tag, not a port"
        );
        let digest = "f".repeat(64);
        assert_eq!(read(&format!("registry.example.org/x:1@sha256:{digest}")), "registry.example.org x");
    }

    #[test]
    fn an_ambiguous_image_reference_is_refused() {
        let digest = "f".repeat(64);
        assert_eq!(read("REGISTRY.example.org/x"), "registry and path must be in lower case");
        assert_eq!(read("EVIL/x"), "registry and path must be in lower case");
        assert_eq!(
            read(&format!("registry.example.org/x@sha256:{}", "F".repeat(64))),
            "registry and path must be in lower case"
        );
        assert_eq!(read(&digest), "it could be the id of an image that the node already has");
        assert_eq!(read(&format!("sha256:{digest}")), "it could be the id of an image that the node already has");
        for wrong in [
            "",
            " nginx",
            "nginx\n",
            "rеgistry.example.org/x",
            "registry.example.org/x:tаg",
            "registry.example.org//x",
            "registry.example.org/../x",
            "registry.example.org@evil.com/x",
            "https://registry.example.org/x",
            "registry.example.org:/x",
            "registry.example.org:abc/x",
            "registry.example.org./x",
            "user:pw@registry.example.org/x",
            "registry.example.org/x@sha256:ff",
            "registry.example.org\\.evil.com/x",
            "registry.example.org%2f/x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    fn reference() -> impl Strategy<Value = String> {
        let part = || "[a-z0-9]{1,3}([._-]{0,3}[a-zA-Z0-9]{1,3}){0,2}";
        let registry = prop_oneof![
            2 => Just(String::new()),
            1 => Just("localhost/".to_owned()),
            1 => Just("index.docker.io/".to_owned()),
            1 => Just("docker.io/".to_owned()),
            4 => "[a-zA-Z0-9-]{1,3}([.][a-zA-Z0-9_-]{1,3}){0,3}(:[0-9]{0,4})?/",
        ];
        let path = prop::collection::vec(part(), 1..4).prop_map(|parts| parts.join("/"));
        let tag = prop_oneof![2 => Just(String::new()), 1 => ":[a-zA-Z0-9_.-]{0,5}"];
        let digest = prop_oneof![
            3 => Just(String::new()),
            1 => "@sha256:[0-9a-f]{64}",
            1 => "@sha256:[0-9a-fA-F]{62,66}",
            1 => "@sha(384:[0-9a-f]{96}|512:[0-9a-f]{128}|1:[0-9a-f]{40})",
        ];
        let sound = (registry, path, tag, digest).prop_map(|(a, b, c, d)| format!("{a}{b}{c}{d}"));
        prop_oneof![4 => sound, 1 => "[a-zA0._:/@-]{0,16}", 1 => "[a-f0-9]{64}"]
    }

    proptest! {
        /// `oci_spec` implements the same grammar, derived from Docker's own.
        #[test]
        fn another_parser_reads_references_in_the_same_way(image in reference()) {
            let theirs = image.parse::<oci_spec::distribution::Reference>();
            match (parse(&image), theirs) {
                (Ok(ours), Ok(theirs)) => {
                    prop_assert_eq!(ours.name, format!("{}/{}", theirs.registry(), theirs.repository()));
                    prop_assert_eq!(ours.has_digest, theirs.digest().is_some());
                }
                (Err(_), Err(_)) | (Err(BadReference::UpperCase | BadReference::LocalId), Ok(_)) => {}
                // If the first part is not a host, `oci_spec` reads it as part of the path.
                (Err(BadReference::Registry), Ok(theirs)) => prop_assert!(!is_registry(theirs.registry())),
                (ours, theirs) => prop_assert!(false, "{image}: {ours:?}, {theirs:?}"),
            }
        }
    }

    #[test]
    fn a_long_text_is_not_parsed() {
        assert_eq!(read(&format!("registry.example.org/{}", "a/".repeat(500_000))), "it is too long");
    }

    #[test]
    fn an_allow_list_accepts_registries_and_their_paths() {
        for place in
            ["registry.example.org", "registry.example.org:5000/", "docker.io/library/", "r.example.org/tool-{name}"]
        {
            assert!(is_place(place), "{place}");
        }
        for wrong in
            ["", "/", "library/", "index.docker.io/", "Registry.example.org", "registry.example.org/x:1", "a.b/{x}"]
        {
            assert!(!is_place(wrong), "{wrong}");
        }
    }

    #[test]
    fn an_allowed_prefix_ends_at_a_slash() {
        for allowed in
            ["registry.example.org", "registry.example.org/", "registry.example.org/x", "registry.example.org/x/"]
        {
            assert!(is_within("registry.example.org/x", allowed), "{allowed}");
            assert!(is_within("registry.example.org/x/y", allowed), "{allowed}");
            assert!(!is_within("registry.example.org.evil.com/x", allowed), "{allowed}");
            assert!(!is_within("registry.example.org:5000/x", allowed), "{allowed}");
            assert!(!is_within("evil.com/registry.example.org/x", allowed), "{allowed}");
        }
        assert!(!is_within("registry.example.org/xy", "registry.example.org/x"));
        assert!(!is_within("registry.example.org/x", "") && !is_within("registry.example.org/x", "/"));
    }
}
