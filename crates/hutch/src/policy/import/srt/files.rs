//! Lists of files, as rules of a policy.

use std::collections::BTreeMap;
use std::path::Path;

use hutch_policy::{Access, FileRule};
use serde_json::json;

use super::{Filesystem, Notes};

const APPLIED: &str = "no part of a policy; `hutch run --settings` applies it";

/// Returns the path of a rule, if a text is one: absolute, without wildcards.
fn plain(text: &str) -> Option<&str> {
    let path = text.strip_suffix("/**").or_else(|| text.strip_suffix('/')).unwrap_or(text);
    let is_rule = serde_json::from_value::<FileRule>(json!({"path": path, "access": "Read"})).is_ok();
    (is_rule && !path.contains(['*', '?', '[', ']'])).then_some(path)
}

impl Filesystem {
    /// Returns the rules for files. Only absolute paths without wildcards become one: a policy has no home and no working
    /// directory.
    pub(crate) fn rules(&self, notes: &mut Notes) -> Vec<FileRule> {
        let mut list = |name: &str, texts: &[String]| -> Vec<String> {
            let mut paths = Vec::new();
            for (index, text) in texts.iter().enumerate() {
                match plain(text) {
                    Some(path) => paths.push(path.to_owned()),
                    None => notes.change(
                        &format!("filesystem.{name}[{index}]"),
                        &format!(
                            "`{}` is no absolute path without wildcards: {APPLIED}",
                            text.escape_debug()
                        ),
                    ),
                }
            }
            paths
        };
        let deny_write = list("denyWrite", &self.deny_write);
        let deny_read = list("denyRead", &self.deny_read);
        let allow_read = list("allowRead", &self.allow_read);
        for (name, is_there) in
            [("allowWrite", !self.allow_write.is_empty()), ("allowGitConfig", self.allow_git_config)]
        {
            if is_there {
                notes.change(&format!("filesystem.{name}"), APPLIED);
            }
        }
        let is_within =
            |path: &str, paths: &[String]| paths.iter().any(|other| Path::new(path).starts_with(other));
        let mut rules = BTreeMap::new();
        rules.extend(deny_write.iter().map(|path| (path, Access::Read)));
        rules.extend(deny_read.iter().map(|path| (path, Access::None)));
        // It beats `denyRead`. The most specific path counts.
        for path in allow_read.iter().filter(|path| is_within(path, &deny_read)) {
            rules.insert(path, if is_within(path, &deny_write) { Access::Read } else { Access::Write });
        }
        let rule = |(path, access)| serde_json::from_value(json!({"path": path, "access": access})).ok();
        rules.into_iter().filter_map(rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_become_rules_and_others_a_line() {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let files = Filesystem {
            deny_read: texts(&["/etc/secrets/**", "~/.ssh", "/srv/*.key", "/opt/both", "/var/again"]),
            allow_read: texts(&["/etc/secrets/public", "/opt/both/x", "/var/again", "/usr"]),
            allow_write: texts(&["."]),
            deny_write: texts(&["/opt/both/", "/w/.git/hooks", "rel"]),
            allow_git_config: false,
        };
        let mut notes = Notes::default();
        let rules = serde_json::to_value(files.rules(&mut notes)).expect("rules");
        let expected = json!([
            {"path": "/etc/secrets", "access": "None"},
            {"path": "/etc/secrets/public", "access": "Write"},
            {"path": "/opt/both", "access": "None"},
            {"path": "/opt/both/x", "access": "Read"},
            {"path": "/var/again", "access": "Write"},
            {"path": "/w/.git/hooks", "access": "Read"},
        ]);
        assert_eq!(rules, expected);
        let fields: Vec<&str> = notes.changes.iter().filter_map(|line| line.split(": ").next()).collect();
        let lines = [
            "filesystem.denyWrite[2]",
            "filesystem.denyRead[1]",
            "filesystem.denyRead[2]",
            "filesystem.allowWrite",
        ];
        assert_eq!(fields, lines, "{notes:?}");
        assert!(Filesystem::default().rules(&mut Notes::default()).is_empty());
    }
}
