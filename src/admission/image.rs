//! Where images come from: references as the container runtimes read them, against the class's registries. PURE: no
//! runtime, no client, no file system, no clock.

use std::fmt;

use oci_spec::distribution::Reference;

use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, field, quoted, text};
use super::pod::{Container, Pod};
use super::rules::Mode;
use super::tenant::Tenant;

/// Longest text that is looked at: a name has at most 255 characters, a tag 128, a digest 135. The grammar alone would
/// take as long a one as a request can carry, and a while for it.
const LONGEST: usize = 1024;

/// Why a text is no image that can be judged.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BadReference {
    Grammar(String),
    UpperCase,
    LocalId,
}

impl fmt::Display for BadReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grammar(why) => f.write_str(why),
            Self::UpperCase => f.write_str("registry and path are in lower case"),
            Self::LocalId => f.write_str("it names what a node may have by chance"),
        }
    }
}

/// Looks at the images of containers, and at those mounted as volumes.
pub(super) fn check(
    pod: &Pod<'_>,
    containers: &[Container<'_>],
    tenant: &Tenant<'_>,
    decision: &mut Decision,
) -> Result<(), Malformed> {
    if tenant.rules.images.mode == Mode::Off {
        return Ok(());
    }
    let mut found = |who: String, image: &str| {
        if let Err((why, cure)) = judged(image, tenant) {
            let what = format!("{who} has the image {}", quoted(image));
            decision.found(tenant.rules.images.mode, Finding { rule: Rule::Images, what, why, cure });
        }
    };
    for container in containers {
        let is_same = container.old.is_some_and(|old| field(old, "image") == field(container.value, "image"));
        if !is_same {
            found(container.who(), text(container.value, "image")?);
        }
    }
    for volume in pod.changed_volumes()? {
        if let Some(image) = field(volume, "image") {
            found(format!("volume {}", quoted(text(volume, "name")?)), text(image, "reference")?);
        }
    }
    Ok(())
}

fn judged(image: &str, tenant: &Tenant<'_>) -> Result<(), (String, String)> {
    let rules = &tenant.rules.images;
    let reference = parse(image).map_err(|error| {
        (format!("that is no image reference ({error})"), "write registry/path:tag, in lower case".to_owned())
    })?;
    let allowed: Vec<String> = rules.allow.iter().filter_map(|allowed| tenant.fill(allowed)).collect();
    let name = format!("{}/{}", reference.registry(), reference.repository());
    if !allowed.iter().any(|allowed| is_within(&name, allowed)) {
        let why = match allowed.as_slice() {
            [] => format!("{} may run no images", tenant.who()),
            _ => format!("{} may run images of {}", tenant.who(), allowed.join(", ")),
        };
        return Err((why, "push it there, and name it so".to_owned()));
    }
    if rules.digest && reference.digest().is_none() {
        return Err(("an image must be named by its digest".to_owned(), format!("write {name}@sha256:…")));
    }
    Ok(())
}

/// Whether `name` is `allowed` or beneath it. `registry.example.org.evil.com` is not beneath `registry.example.org`.
fn is_within(name: &str, allowed: &str) -> bool {
    let allowed = allowed.trim_end_matches('/');
    !allowed.is_empty() && name.strip_prefix(allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether an allow-list can have this: `registry[:port][/path]` in lower case, that a reference's registry can be.
#[must_use]
pub fn is_place(text: &str) -> bool {
    let plain = text.trim_end_matches('/').replace("{name}", "a");
    let registry = plain.split('/').next().unwrap_or_default();
    parse(&format!("{plain}/a")).is_ok_and(|reference| reference.registry() == registry)
}

/// A reference as the runtimes understand it, with their defaults (`docker.io`, `library/`).
///
/// The grammar is that of `github.com/distribution/reference`. Stricter than it are we with what two parsers could read in
/// two ways: letters beyond ASCII, upper case outside of the tag, and ids of what a node has already.
fn parse(image: &str) -> Result<Reference, BadReference> {
    if image.len() > LONGEST {
        return Err(BadReference::Grammar("it is too long".to_owned()));
    }
    if !image.is_ascii() {
        return Err(BadReference::Grammar("it has letters beyond ASCII".to_owned()));
    }
    let reference: Reference =
        image.parse().map_err(|error: oci_spec::distribution::ParseError| BadReference::Grammar(error.to_string()))?;
    let upper = |text: &str| text.contains(|c: char| c.is_ascii_uppercase());
    if upper(reference.registry()) || upper(reference.repository()) || reference.digest().is_some_and(upper) {
        return Err(BadReference::UpperCase);
    }
    let name = image.split(['@', ':']).next().unwrap_or_default();
    let is_hash = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    // containerd takes `sha256:…` for the id of an image that it has, whoever pulled it.
    if matches!(name, "sha256" | "sha384" | "sha512") || is_hash(name) {
        return Err(BadReference::LocalId);
    }
    Ok(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(image: &str) -> String {
        match parse(image) {
            Ok(reference) => format!("{} {}", reference.registry(), reference.repository()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn references_are_what_the_runtimes_take_them_for() {
        assert_eq!(read("nginx"), "docker.io library/nginx");
        assert_eq!(read("index.docker.io/nginx"), "docker.io library/nginx");
        assert_eq!(read("registry.example.org/x"), "registry.example.org x");
        assert_eq!(read("registry/x"), "docker.io registry/x", "no dot, no port: no registry");
        assert_eq!(read("registry:5000/x:1"), "registry:5000 x");
        assert_eq!(read("localhost/x"), "localhost x");
        assert_eq!(read("registry.example.org:5000"), "docker.io library/registry.example.org", "a tag");
        let digest = "f".repeat(64);
        assert_eq!(read(&format!("registry.example.org/x:1@sha256:{digest}")), "registry.example.org x");
    }

    #[test]
    fn what_two_parsers_could_read_in_two_ways_is_refused() {
        let digest = "f".repeat(64);
        assert_eq!(read("REGISTRY.example.org/x"), "registry and path are in lower case");
        assert_eq!(read("EVIL/x"), "registry and path are in lower case");
        assert_eq!(
            read(&format!("registry.example.org/x@sha256:{}", "F".repeat(64))),
            "registry and path are in lower case"
        );
        assert_eq!(read(&digest), "it names what a node may have by chance");
        assert_eq!(read(&format!("sha256:{digest}")), "it names what a node may have by chance");
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

    #[test]
    fn a_long_text_is_not_parsed() {
        assert_eq!(read(&format!("registry.example.org/{}", "a/".repeat(500_000))), "it is too long");
    }

    #[test]
    fn an_allow_list_has_places_of_registries() {
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
    fn prefixes_end_at_a_slash() {
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
