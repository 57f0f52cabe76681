//! Merges a person's public SSH keys into `authorized_keys` as a marked block, and keeps everything else in the file.

use bursar_protocol::SshKey;

const BEGIN: &str = "# BEGIN bursar";
const END: &str = "# END bursar";
/// The note after [`BEGIN`], for people who read the file.
const ADVICE: &str = ": from the directory, overwritten; put your own keys above or below";

/// Returns the file with exactly these keys in our block, or without the block if there are no keys. `None` if that
/// changes nothing. Everything else stays byte for byte, except that a line break is added before the block if it is
/// missing. Returns an error if it is unclear where the block begins and ends.
pub fn merge(existing: &[u8], keys: &[SshKey]) -> Result<Option<Vec<u8>>, String> {
    let lines: Vec<&[u8]> = existing.split_inclusive(|byte| *byte == b'\n').collect();
    let at = |mark: &str| -> Vec<usize> {
        lines.iter().enumerate().filter(|(_, line)| is(line, mark)).map(|(place, _)| place).collect()
    };
    let (above, below) = match (&at(BEGIN)[..], &at(END)[..]) {
        ([], []) => (&lines[..], &lines[..0]),
        ([begin], [end]) if begin < end => (&lines[..*begin], &lines[end + 1..]),
        (begins, ends) => {
            return Err(format!("Bursar's block begins {} times and ends {} times", begins.len(), ends.len()));
        }
    };
    let mut merged = above.concat();
    if !keys.is_empty() {
        if merged.last().is_some_and(|last| *last != b'\n') {
            merged.push(b'\n');
        }
        let block: Vec<&str> = keys.iter().map(SshKey::line).collect();
        merged.extend(format!("{BEGIN}{ADVICE}\n{}\n{END}\n", block.join("\n")).bytes());
    }
    merged.extend(below.concat());
    Ok((merged != existing).then_some(merged))
}

/// Whether a line begins with this mark. People may have added text after the mark.
fn is(line: &[u8], mark: &str) -> bool {
    let rest = line.trim_ascii().strip_prefix(mark.as_bytes());
    rest.is_some_and(|rest| rest.first().is_none_or(|next| !next.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> SshKey {
        let blob = [&[0, 0, 0, 11], &b"ssh-ed25519"[..], &[0, 0, 0, 32], &[byte; 32]].concat();
        SshKey::parse(&format!("ssh-ed25519 {}", STANDARD.encode(blob))).expect("the key is valid")
    }

    #[test]
    fn adding_changing_and_removing_our_block_keeps_other_lines() {
        let own = b"# mine\r\nssh-rsa AAAA me\r\nno end";
        let with = merge(own, &[key(1), key(2)]).expect("the file has no broken block").expect("the file changes");
        let text = String::from_utf8(with.clone()).expect("the file is UTF-8");
        assert!(text.starts_with("# mine\r\nssh-rsa AAAA me\r\nno end\n# BEGIN bursar"), "{text}");
        assert!(text.ends_with(&format!("\n{}\n{}\n# END bursar\n", key(1).line(), key(2).line())), "{text}");
        assert_eq!(merge(&with, &[key(1), key(2)]), Ok(None));

        let below = [&with[..], b"theirs\n"].concat();
        let other = merge(&below, &[key(3)]).expect("the block is complete").expect("the file changes");
        assert!(other.ends_with(b"# END bursar\ntheirs\n"));
        let without = merge(&other, &[]).expect("the block is complete").expect("the file changes");
        assert_eq!(without, b"# mine\r\nssh-rsa AAAA me\r\nno end\ntheirs\n");
        assert_eq!(merge(&without, &[]), Ok(None));
        assert_eq!(merge(b"", &[]), Ok(None));
    }

    #[test]
    fn a_block_without_clear_begin_and_end_is_refused() {
        for broken in [
            "# BEGIN bursar\nx\n",
            "# END bursar\n",
            "# END bursar\n# BEGIN bursar\n",
            "# BEGIN bursar\n# END bursar\n# BEGIN bursar\n# END bursar\n",
            "# BEGIN bursar\n# BEGIN bursar: x\r\n# END bursar\n",
        ] {
            assert!(merge(broken.as_bytes(), &[key(1)]).is_err(), "{broken}");
        }
        assert!(merge(b"# BEGIN bursary\n", &[key(1)]).is_ok_and(|merged| merged.is_some()));
    }

    proptest! {
        #[test]
        fn other_lines_of_the_file_stay(own in "[a-z# \r\n]{0,60}", count in 0..3_u8) {
            let keys: Vec<SshKey> = (0..count).map(key).collect();
            let with = merge(own.as_bytes(), &keys).expect("the file has no block");
            let with = with.unwrap_or_else(|| own.clone().into_bytes());
            let back = merge(&with, &[]).expect("the block is complete").unwrap_or(with.clone());
            let back = String::from_utf8_lossy(&back);
            prop_assert_eq!(back.trim_end_matches('\n'), own.trim_end_matches('\n'));
            prop_assert_eq!(merge(&with, &keys), Ok(None));
        }
    }
}
