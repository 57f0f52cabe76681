//! Prints names for shell completions: accounts, refusals and archives from the ledger, classes, clusters and sources
//! from the configuration. A caller who may not read the ledger or the configuration gets no names from it.

use super::arguments::NameKind;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output;
use crate::ledger::Lifecycle;

/// Prints the sorted names of one kind, one per line.
pub(super) async fn run(context: &Context, kind: NameKind) -> Result<Exit, Failure> {
    let mut names: Vec<String> = match kind {
        NameKind::Class => context.offline_settings()?.policy.classes.into_keys().collect(),
        NameKind::Cluster => {
            context.offline_settings()?.clusters.into_keys().map(|cluster| cluster.to_string()).collect()
        }
        NameKind::Source => context.offline_settings()?.source_names().map(str::to_owned).collect(),
        NameKind::Refusal => {
            let report = context.store().await?.last_report().await?.unwrap_or_default();
            let refusals = report["refusals"].as_array().into_iter().flatten();
            refusals.filter_map(|refusal| refusal["hash"].as_str().map(str::to_owned)).collect()
        }
        NameKind::Archive => context.store().await?.state().await?.archives.keys().cloned().collect(),
        NameKind::Account(kind) => {
            let ledger = context.store().await?.state().await?;
            let accounts = ledger.accounts.values().filter(|it| it.kind == kind && it.state != Lifecycle::Deleted);
            accounts.map(|account| account.name.clone()).collect()
        }
    };
    names.sort_unstable();
    names.dedup();
    output::raw(&names.join("\n"));
    Ok(Exit::Done)
}

/// A script for bash that offers names, depending on the word before the cursor. It is appended to clap's script.
pub(super) const BASH: &str = r#"
_bursar_with_names() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} kind=
    case $before in
        tool|user|group|--tool|--user|--group) kind=${before#--} ;;
        --class) kind=class ;;
        --cluster) kind=cluster ;;
        accept|diff) kind=source ;;
        approve) kind=refusal ;;
        show|apply) [[ ${COMP_WORDS[COMP_CWORD-2]} == archive ]] && kind=archive ;;
    esac
    if [[ -n $kind && $word != -* ]]; then
        local name
        COMPREPLY=()
        # Not `compgen -W`, which would run a command substitution within a name.
        while IFS= read -r name; do
            [[ $name == "$word"* ]] && COMPREPLY+=("$(printf %q "$name")")
        done < <(bursar names "$kind" 2>/dev/null)
        return
    fi
    _bursar "$@"
}
complete -F _bursar_with_names -o nosort -o bashdefault -o default bursar
"#;

/// The script for fish.
pub(super) const FISH: &str = r#"
function __bursar_before
    set -l words (commandline -opc)
    test (count $words) -gt 0; and contains -- $words[-1] $argv
end
for kind in tool user group
    complete -c bursar -f -n "__bursar_before $kind --$kind" -a "(bursar names $kind 2>/dev/null)"
end
complete -c bursar -f -n "__bursar_before --class" -a "(bursar names class 2>/dev/null)"
complete -c bursar -f -n "__bursar_before --cluster" -a "(bursar names cluster 2>/dev/null)"
complete -c bursar -f -n "__bursar_before accept diff" -a "(bursar names source 2>/dev/null)"
complete -c bursar -f -n "__bursar_before approve" -a "(bursar names refusal 2>/dev/null)"
complete -c bursar -f -n "__bursar_before show apply; and __fish_seen_subcommand_from archive" -a "(bursar names archive 2>/dev/null)"
"#;

/// The end of clap's script for zsh, which [`ZSH`] replaces: otherwise, the first completion of a shell that loads the
/// script from its folder would call clap's function and offer no names.
pub(super) const END_OF_CLAPS_ZSH: &str = r#"
if [ "$funcstack[1]" = "_bursar" ]; then
    _bursar "$@"
else
    compdef _bursar bursar
fi
"#;

/// The script for zsh. For everything but names, it calls the function that clap generates.
pub(super) const ZSH: &str = r#"
_bursar_with_names() {
    local kind=
    case ${words[CURRENT-1]} in
        tool|user|group|--tool|--user|--group) kind=${words[CURRENT-1]#--} ;;
        --class) kind=class ;;
        --cluster) kind=cluster ;;
        accept|diff) kind=source ;;
        approve) kind=refusal ;;
        show|apply) [[ ${words[CURRENT-2]} == archive ]] && kind=archive ;;
    esac
    if [[ -n $kind && ${words[CURRENT]} != -* ]]; then
        compadd -- ${(f)"$(bursar names $kind 2>/dev/null)"}
        return
    fi
    _bursar "$@"
}
compdef _bursar_with_names bursar
if [ "$funcstack[1]" = "_bursar" ]; then
    _bursar_with_names "$@"
fi
"#;

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use clap::Parser as _;

    use super::BASH;
    use crate::cli::arguments::{Arguments, Command};

    #[test]
    fn every_kind_in_the_scripts_is_a_valid_argument() {
        for kind in ["tool", "user", "group", "class", "cluster", "source", "refusal", "archive"] {
            let parsed = Arguments::try_parse_from(["bursar", "names", kind]).expect(kind);
            assert!(matches!(parsed.command, Command::Names { .. }));
        }
    }

    #[test]
    fn bash_offers_names_and_never_runs_them() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let script = format!(
            r#"bursar() {{ printf '%s\n' foo 'f$(touch x)' 'f`touch x`' 'f;touch x' bar; }}
            {BASH}
            COMP_WORDS=(bursar show tool f) COMP_CWORD=3
            _bursar_with_names
            printf '%s\n' "${{COMPREPLY[@]}}"
            eval "printf '<%s>' ${{COMPREPLY[*]}}""#
        );
        let ran = Process::new("bash").args(["-c", &script]).current_dir(folder.path()).output().expect("bash runs");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        assert!(!folder.path().join("x").exists(), "a name ran as a command");
        assert!(said.ends_with("<foo><f$(touch x)><f`touch x`><f;touch x>"), "{said}");
    }

    #[test]
    fn bash_knows_the_kind_of_each_place() {
        for (line, kind) in [
            ("bursar show tool", "tool"),
            ("bursar directory accept", "source"),
            ("bursar approve", "refusal"),
            ("bursar archive show", "archive"),
            ("bursar archive apply", "archive"),
            ("bursar show", "clap"),
            ("bursar webhook audit --cluster", "cluster"),
        ] {
            let script = format!(
                r#"bursar() {{ echo "$2"; }}
                _bursar() {{ COMPREPLY=(clap); }}
                {BASH}
                COMP_WORDS=({line} "") COMP_CWORD={}
                _bursar_with_names
                echo "${{COMPREPLY[@]}}""#,
                line.split(' ').count()
            );
            let ran = Process::new("bash").args(["-c", &script]).output().expect("bash runs");
            assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), kind, "{line}");
        }
    }
}
