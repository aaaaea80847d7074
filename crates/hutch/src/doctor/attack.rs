//! `hutch doctor --attack`: tries known attacks from inside a sandbox of this machine, started with `hutch run`.
//!
//! Each attack also runs once without a sandbox. If the results are the same, the attack shows nothing: this kernel lacks
//! something that it needs, or the caller has no permission for it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use hutch_jail::attack::{Attack, Control, Kept, Known, Planted, Shown, all};
use hutch_node::oci::Runsc;
use serde::Serialize;

use crate::programs;

/// Result of one attack.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tried {
    /// Target of the attack.
    attack: &'static str,
    /// Known attacks that it is a part of.
    known: Vec<&'static str>,
    /// Result in the sandbox.
    found: String,
    /// Result without a sandbox.
    without: String,
    verdict: Verdict,
    /// Reason why it shows nothing here.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    /// Works without a sandbox and not in one.
    Held,
    /// Does not work without a sandbox either.
    NotTestable,
    /// Works in the sandbox.
    Works,
}

/// Tries all attacks in every kind of sandbox of this machine and prints the results; returns true if none worked.
pub(super) fn main(json: bool) -> anyhow::Result<bool> {
    let bench = Bench::new()?;
    let mut tried = BTreeMap::from([("native", bench.attempt(all(&bench.planted), "hutch")?)]);
    let gvisor = rustix::process::geteuid().is_root() && Runsc::find().is_some();
    if gvisor {
        let everywhere = all(&bench.planted).into_iter().filter(|attack| attack.kept == Kept::Everywhere);
        tried.insert("gvisor", bench.attempt(everywhere.collect(), "gvisor")?);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&tried)?);
    } else {
        tried.iter().rev().for_each(|(handler, tried)| print!("{}", text(handler, tried)));
        if !gvisor {
            println!("gvisor: not tried, which needs root and runsc on the PATH");
        }
    }
    Ok(tried.values().flatten().all(|tried| tried.verdict != Verdict::Works))
}

/// Folder and targets of the attacks.
struct Bench {
    folder: tempfile::TempDir,
    planted: Planted,
}

impl Bench {
    fn new() -> anyhow::Result<Bench> {
        let folder = tempfile::tempdir().context("a temporary folder")?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        for name in ["planted", "scratch", "workspace"] {
            fs::create_dir(folder.path().join(name))?;
        }
        programs::install_attack(&folder.path().join("workspace"))?;
        let planted = Planted::new(&folder.path().join("planted"))
            .context("cannot put on this machine what is looked for")?;
        Ok(Bench { folder, planted })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn attempt(&self, attacks: Vec<Attack>, isolation: &str) -> anyhow::Result<Vec<Tried>> {
        let without = self.without(&attacks)?;
        let found = self.inside(&attacks, isolation)?;
        let judged = |((attack, found), without)| judged(attack, found, without);
        Ok(attacks.iter().zip(found).zip(without).map(judged).collect())
    }

    /// Without a sandbox, by a process that holds a folder.
    fn without(&self, attacks: &[Attack]) -> anyhow::Result<Vec<String>> {
        let scratch = self.path("scratch");
        let mut command = Command::new(self.path("workspace").join(programs::ATTACK));
        command.args(attacks.iter().map(|attack| attack.attempt_in(&scratch).join(" ")));
        command.stdin(fs::File::open("/")?);
        answers(attacks, &mut command)
    }

    fn inside(&self, attacks: &[Attack], isolation: &str) -> anyhow::Result<Vec<String>> {
        let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
        command.args(["run", "--isolation", isolation, "--workspace"]).arg(self.path("workspace"));
        command.arg("--").arg(Path::new("/workspace").join(programs::ATTACK));
        command.args(attacks.iter().map(|attack| &attack.attempt)).stdin(Stdio::null());
        answers(attacks, &mut command)
    }
}

/// Runs a program that tries attacks; returns the result of each.
fn answers(attacks: &[Attack], command: &mut Command) -> anyhow::Result<Vec<String>> {
    let output = command.output().with_context(|| format!("{:?}", command.get_program()))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let found: Vec<String> =
        printed.lines().filter_map(|line| Some(line.split_once('\t')?.1.to_owned())).collect();
    ensure!(
        output.status.success() && found.len() == attacks.len(),
        "the attacks ended early, with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(found)
}

fn judged(attack: &Attack, found: String, without: String) -> Tried {
    let (verdict, reason) = if !attack.held(&found) {
        (Verdict::Works, None)
    } else if attack.held(&without) {
        let reason = match attack.control {
            Control::NotHere(reason) => reason,
            Control::OutsideIfThere => "this machine does not have it, or the caller has no right to it",
            _ => "refused without a sandbox too",
        };
        (Verdict::NotTestable, Some(reason))
    } else {
        (Verdict::Held, None)
    };
    let known = attack.known.iter().map(|known| known.name()).collect();
    Tried { attack: attack.name, known, found, without, verdict, reason }
}

/// Prints known attacks with the results of their parts, then the number of all that failed.
fn text(handler: &str, tried: &[Tried]) -> String {
    let mut out = format!("{handler}\n");
    for known in Known::ALL {
        let parts: Vec<&Tried> = tried.iter().filter(|tried| tried.known.contains(&known.name())).collect();
        out.push_str(&format!("  {:<36}{}\n", known.name(), summary(known, &parts)));
    }
    let count = |verdict| tried.iter().filter(|tried| tried.verdict == verdict).count();
    out.push_str(&format!(
        "  of {} attempts {} held, {} cannot be shown here, {} worked\n\n",
        tried.len(),
        count(Verdict::Held),
        count(Verdict::NotTestable),
        count(Verdict::Works)
    ));
    for worked in tried.iter().filter(|tried| tried.verdict == Verdict::Works) {
        out.push_str(&format!("  WORKED: {}: {}\n", worked.attack, worked.found));
    }
    out
}

fn summary(known: Known, parts: &[&Tried]) -> String {
    let worked: Vec<&str> =
        parts.iter().filter(|part| part.verdict == Verdict::Works).map(|part| part.attack).collect();
    if !worked.is_empty() {
        return format!("WORKED: {}", worked.join(", "));
    }
    if parts.iter().any(|part| part.verdict == Verdict::Held) {
        return "held".to_owned();
    }
    match (parts.iter().find_map(|part| part.reason), known.shown()) {
        (Some(reason), _) => format!("not testable here: {reason}"),
        (None, Shown::ByTest(_)) => "not tried here: needs a server or an image of its own".to_owned(),
        (None, _) => "not tried here: another kernel answers".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attack(finds: &'static [&'static str], control: Control) -> Attack {
        let known = vec![Known::Keyrings];
        let attempt = "read /proc/keys".to_owned();
        Attack { name: "keys", attempt, finds, kept: Kept::Natively, control, known }
    }

    #[test]
    fn attack_that_fails_everywhere_shows_nothing() {
        let verdict = |found: &str, without: &str| {
            let tried = judged(&attack(&["ENOENT"], Control::Outside), found.to_owned(), without.to_owned());
            (tried.verdict, tried.reason.is_some())
        };
        assert_eq!(verdict("ENOENT", "secret"), (Verdict::Held, false));
        assert_eq!(verdict("ENOENT", "ENOENT"), (Verdict::NotTestable, true));
        assert_eq!(verdict("secret", "secret"), (Verdict::Works, false));
        assert_eq!(verdict("secret", "ENOENT"), (Verdict::Works, false));
    }

    #[test]
    fn one_working_part_is_reported() {
        let part =
            |found: &str| judged(&attack(&["ENOENT"], Control::Outside), found.to_owned(), "x".to_owned());
        let (held, works) = (part("ENOENT"), part("x"));
        assert_eq!(summary(Known::Keyrings, &[&held]), "held");
        assert_eq!(summary(Known::Keyrings, &[&held, &works]), "WORKED: keys");
        assert!(text("native", &[works]).contains("WORKED: keys: x"));
    }
}
