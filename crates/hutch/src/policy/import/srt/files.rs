//! Lists of files, as rules of a policy.

use std::collections::BTreeMap;
use std::path::Path;

use hutch_policy::{Access, FileRule};
use serde_json::json;

use super::{Filesystem, Notes};

const APPLIED: &str = "no part of a policy; `hutch run --settings` applies it";

/// It opens what `denyRead` closes. Without one of its paths more is closed.
const ALLOW_READ: &str = "filesystem.allowRead";

/// Returns the path of a rule, if a text is one: absolute, without wildcards.
fn plain(text: &str) -> Option<&str> {
    let path = text.strip_suffix("/**").or_else(|| text.strip_suffix('/')).unwrap_or(text);
    let is_rule = serde_json::from_value::<FileRule>(json!({"path": path, "access": "Read"})).is_ok();
    (is_rule && !path.contains(['*', '?', '[', ']'])).then_some(path)
}

impl Filesystem {
    /// Returns the rules for files. Only absolute paths without wildcards become one: a policy has no home and no working
    /// directory. A path that would stay open is refused. `secret` are files with credentials.
    pub(super) fn rules(&self, secret: &[String], notes: &mut Notes) -> Vec<FileRule> {
        let mut list = |name: &str, texts: &[String]| -> Vec<String> {
            let mut paths = Vec::new();
            for (index, text) in texts.iter().enumerate() {
                match plain(text) {
                    Some(path) => paths.push(path.to_owned()),
                    None => {
                        let field = format!("{name}[{index}]");
                        let path = text.escape_debug();
                        let why = format!("`{path}` is no absolute path without wildcards: {APPLIED}");
                        match name {
                            ALLOW_READ => notes.change(&field, &why),
                            _ => notes.refuse(&field, &why),
                        }
                    }
                }
            }
            paths
        };
        let deny_write = list("filesystem.denyWrite", &self.deny_write);
        let deny_read = list("filesystem.denyRead", &self.deny_read);
        let allow_read = list(ALLOW_READ, &self.allow_read);
        let secret = list("credentials.files", secret);
        for (name, is_there) in
            [("allowWrite", !self.allow_write.is_empty()), ("allowGitConfig", self.allow_git_config)]
        {
            if is_there {
                notes.change(&format!("filesystem.{name}"), APPLIED);
            }
        }
        let is_within =
            |path: &str, paths: &[String]| paths.iter().any(|other| Path::new(path).starts_with(other));
        let (secrets, allow_read): (Vec<_>, Vec<_>) =
            allow_read.into_iter().partition(|path| is_within(path, &secret));
        for path in secrets {
            notes.refuse(ALLOW_READ, format!("{path} would be shown again, which is denied as a credential"));
        }
        let mut rules = BTreeMap::new();
        rules.extend(deny_write.iter().map(|path| (path, Access::Read)));
        rules.extend(deny_read.iter().map(|path| (path, Access::None)));
        // It beats `denyRead`. The most specific path counts.
        for path in allow_read.iter().filter(|path| is_within(path, &deny_read)) {
            rules.insert(path, if is_within(path, &deny_write) { Access::Read } else { Access::Write });
        }
        rules.extend(secret.iter().map(|path| (path, Access::None)));
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
            allow_read: texts(&[
                "/etc/secrets/public",
                "/opt/both/x",
                "/var/again",
                "/usr",
                "~/x",
                "/var/again/key/part",
            ]),
            allow_write: texts(&["."]),
            deny_write: texts(&["/opt/both/", "/w/.git/hooks", "rel"]),
            allow_git_config: false,
        };
        let mut notes = Notes::default();
        let rules = serde_json::to_value(files.rules(&texts(&["/var/again/key", "~/.netrc"]), &mut notes))
            .expect("rules");
        let expected = json!([
            {"path": "/etc/secrets", "access": "None"},
            {"path": "/etc/secrets/public", "access": "Write"},
            {"path": "/opt/both", "access": "None"},
            {"path": "/opt/both/x", "access": "Read"},
            {"path": "/var/again", "access": "Write"},
            {"path": "/var/again/key", "access": "None"},
            {"path": "/w/.git/hooks", "access": "Read"},
        ]);
        assert_eq!(rules, expected);
        let fields = |lines: &[String]| -> Vec<String> {
            lines.iter().filter_map(|line| Some(line.split(": ").next()?.to_owned())).collect()
        };
        assert_eq!(fields(&notes.changes), ["filesystem.allowRead[4]", "filesystem.allowWrite"], "{notes:?}");
        let refused = [
            "filesystem.denyWrite[2]",
            "filesystem.denyRead[1]",
            "filesystem.denyRead[2]",
            "credentials.files[1]",
            "filesystem.allowRead",
        ];
        assert_eq!(fields(&notes.refusals), refused, "{notes:?}");
        assert!(Filesystem::default().rules(&[], &mut Notes::default()).is_empty());
    }
}
