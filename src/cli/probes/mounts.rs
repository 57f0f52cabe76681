//! Parses `/proc/self/mountinfo` (proc(5)) and `/etc/fstab` (fstab(5)), and finds missing mounts.

use std::path::{Path, PathBuf};

/// One line of either file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// The mount point.
    pub(super) point: PathBuf,
    /// The type of the file system, such as `nfs4` or `ext4`.
    pub(super) kind: String,
    /// For example `nfs.example.org:/srv/project` or `/dev/vda`.
    pub(super) source: String,
}

/// Parses `/proc/self/mountinfo`. Lines that cannot be parsed are left out.
pub(super) fn mounted(text: &str) -> Vec<Mount> {
    let line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, source) = (after.next()?, after.next()?);
        Some(mount(before.split(' ').nth(4)?, kind, source))
    };
    text.lines().filter_map(line).collect()
}

/// Returns the lines of `/etc/fstab` that have a mount point.
pub(super) fn wanted(text: &str) -> Vec<Mount> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (source, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (point.starts_with('/') && kind != "swap").then(|| mount(point, kind, source))
    };
    lines.filter_map(line).collect()
}

/// Returns the mount that holds `path`: the deepest one at or above it. If several have that mount point, the last
/// counts.
pub(super) fn holding<'m>(mounted: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    let above = mounted.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

/// Returns a mount of `wanted` at, above or beneath `path` that is missing in `mounted`.
pub(super) fn absent<'m>(wanted: &'m [Mount], mounted: &[Mount], path: &Path) -> Option<&'m Mount> {
    wanted.iter().find(|wanted| {
        let near = path.starts_with(&wanted.point) || wanted.point.starts_with(path);
        near && !mounted.iter().any(|mount| mount.point == wanted.point)
    })
}

fn mount(point: &str, kind: &str, source: &str) -> Mount {
    Mount { point: PathBuf::from(unescaped(point)), kind: kind.to_owned(), source: unescaped(source) }
}

/// Decodes blanks and other special characters, which both files write in octal (`\\040`).
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTED: &str = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        40 22 0:35 / /data/my\\040tools rw,relatime shared:20 master:3 - nfs4 nfs.example.org:/srv/tools rw,vers=4.2\n";

    #[test]
    fn the_mount_that_contains_a_path_is_found() {
        let mounted = mounted(MOUNTED);
        assert_eq!(holding(&mounted, Path::new("/data/my tools/foo")).map(|mount| mount.kind.as_str()), Some("nfs4"));
        assert_eq!(holding(&mounted, Path::new("/data")).map(|mount| mount.source.as_str()), Some("/dev/vda"));
    }

    #[test]
    fn mounts_of_fstab_that_are_missing_are_found() {
        let wanted = wanted(
            "# homes\n/dev/vda / ext4 defaults 0 1\nnone none swap sw 0 0\n\
             nfs.example.org:/srv/home\t/home  nfs4 hard 0 0\nnfs.example.org:/srv/tools /data/my\\040tools nfs4 hard 0 0\n",
        );
        let mounted = mounted(MOUNTED);
        let absent = |path: &str| absent(&wanted, &mounted, Path::new(path)).map(|mount| mount.point.clone());
        assert_eq!(absent("/home"), Some(PathBuf::from("/home")));
        assert_eq!(absent("/home/people"), Some(PathBuf::from("/home")));
        assert_eq!(absent("/data/my tools"), None);
        assert_eq!(absent("/data"), None);
    }
}
