//! Rules for files of the policies of a Pod, and their form for the jail of a container.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hutch_jail::{FileAccess, FileRules};
use hutch_policy::{Access, LEVELS as FILE_POLICIES, PolicyFiles, Restrictions, access_at, combined, looser};

/// Maximum bytes of the rules of a container: its jail is described in one message.
const BYTES: usize = 64 << 10;
/// Maximum paths in a message.
const SHOWN: usize = 8;

/// Rules for files that apply to a Pod.
#[derive(Debug, Default)]
pub(crate) struct Files {
    policies: Vec<PolicyFiles>,
    restrictions: Restrictions,
    /// Those without which nothing is reachable.
    needed: Restrictions,
    /// Policies with rules, if these are too many to be enforced.
    too_many: Option<usize>,
}

/// Rules for files that are not enforced, as users read it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unenforced {
    /// Nothing is reachable.
    Refused(String),
    /// The rest of the policies applies.
    Reported(String),
}

/// Mount of a volume in a container.
#[derive(Debug, Clone)]
pub(crate) struct VolumePart {
    /// Path in the container.
    pub(crate) target: PathBuf,
    /// Folder of the volume.
    pub(crate) volume: PathBuf,
    /// Path in the volume; empty for all of it.
    pub(crate) part: PathBuf,
    /// `true` unless only the node writes the volume, before the Pod starts.
    pub(crate) changes: bool,
}

impl VolumePart {
    /// Returns true if some file is in both.
    pub(crate) fn overlaps(&self, other: &VolumePart) -> bool {
        let (one, two) = (&self.part, &other.part);
        self.volume == other.volume && (one.starts_with(two) || two.starts_with(one))
    }
}

impl Files {
    pub(crate) fn new(policies: Vec<PolicyFiles>) -> Files {
        let (restrictions, needed) = PolicyFiles::combined(&policies);
        Files { policies, restrictions, needed, too_many: None }
    }

    /// Returns the rules of more policies than may apply, with which no container starts.
    pub(crate) fn too_many(policies: usize) -> Files {
        Files { too_many: Some(policies), ..Files::default() }
    }

    /// Returns true for the rules of these policies, or of as many too many.
    pub(crate) fn is_of(&self, policies: &Result<Vec<PolicyFiles>, usize>) -> bool {
        match policies {
            Ok(policies) => self.too_many.is_none() && self.policies == *policies,
            Err(count) => self.too_many == Some(*count),
        }
    }

    /// Returns what containers with these rules do not obey of the required ones.
    pub(crate) fn unenforced(&self, required: &Files) -> Option<Unenforced> {
        let open = looser(&self.restrictions, &required.restrictions);
        if open.is_empty() {
            return None;
        }
        let named = open.iter().take(SHOWN);
        let policies: BTreeSet<&str> = named.filter_map(|path| Some(required.origin(path)?.0)).collect();
        let policies: Vec<String> = policies.iter().map(|name| format!("{name:?}")).collect();
        let paths = shown(open.iter().map(|path| path.display().to_string()));
        let message = format!(
            "spec.files of {}: the containers were started without the rules for {paths}: recreate the Pod",
            policies.join(", ")
        );
        let refused = !looser(&self.restrictions, &required.needed).is_empty();
        Some(if refused {
            Unenforced::Refused(format!("{message}. No egress"))
        } else {
            Unenforced::Reported(message)
        })
    }

    /// Returns a description of what is closed, if anything is.
    pub(crate) fn summary(&self) -> Option<String> {
        let closed = self.restrictions.iter().filter(|(_, access)| *access != Access::Write);
        let closed: Vec<String> =
            closed.map(|(path, access)| format!("{} ({access:?})", path.display())).collect();
        (!closed.is_empty()).then(|| format!("files closed: {}", shown(closed.into_iter())))
    }

    /// Returns the policy that decides about a path, and the index of its rule.
    fn origin(&self, path: &Path) -> Option<(&str, usize)> {
        let rules = self.policies.iter().filter_map(|policy| {
            let covering = policy.rules.iter().enumerate();
            let covering = covering.filter(|(_, rule)| path.starts_with(rule.path.as_path()));
            let (index, rule) = covering.max_by_key(|(_, rule)| rule.path.as_path().components().count())?;
            Some((rule.access, policy.policy.as_str(), index))
        });
        rules.min_by_key(|(access, ..)| *access).map(|(_, policy, index)| (policy, index))
    }

    /// Returns the rules for the jail of a container with these volumes. A rule for a file of a volume holds at every path at
    /// which the container has the volume, also if only one of the containers `beside` it has the volume at its path.
    pub(crate) fn rules(&self, parts: &[VolumePart], beside: &[VolumePart]) -> Result<FileRules, String> {
        if let Some(count) = self.too_many {
            return Err(format!(
                "spec.files: {count} policies with rules apply; at most {FILE_POLICIES} may"
            ));
        }
        if self.restrictions.is_empty() {
            return Ok(FileRules::default());
        }
        let mut levels = vec![self.restrictions.clone()];
        let all = [parts, beside].concat();
        for (number, shows) in all.iter().enumerate() {
            for (other, also) in parts.iter().enumerate() {
                if number != other && shows.volume == also.volume {
                    levels.push(self.elsewhere(shows, also));
                }
            }
        }
        let mut rules = Vec::new();
        let mut bytes = 0;
        for (path, access) in combined(&levels) {
            let (policy, index) =
                self.origin(&path).or_else(|| self.origin_elsewhere(&path, &all)).unwrap_or(("", 0));
            let name = format!("policy {policy:?}: spec.files[{index}].path: {}", path.display());
            let access = match access {
                Access::None => FileAccess::Hidden,
                Access::Read => FileAccess::Read,
                Access::Write => FileAccess::Write,
            };
            bytes += name.len() + path.as_os_str().len();
            rules.push(hutch_jail::FileRule { path, access, name });
        }
        if bytes > BYTES {
            return Err(format!("spec.files: the rules of all policies take {bytes} bytes; at most {BYTES}"));
        }
        let shared = parts.iter().filter(|part| part.changes).map(|part| part.target.clone());
        Ok(FileRules { rules, shared: shared.collect() })
    }

    /// Returns the restrictions of what a mount shows, at the paths at which another mount of the same volume shows it.
    #[expect(clippy::disallowed_methods, reason = "paths in a container, which its jail looks up")]
    fn elsewhere(&self, shows: &VolumePart, also: &VolumePart) -> Restrictions {
        // The top of what both show, in each of them.
        let (here, there) = match (also.part.strip_prefix(&shows.part), shows.part.strip_prefix(&also.part)) {
            (Ok(rest), _) => (below(&shows.target, rest), also.target.clone()),
            (_, Ok(rest)) => (shows.target.clone(), below(&also.target, rest)),
            _ => return Restrictions::new(),
        };
        let within = self.restrictions.iter().filter_map(|(path, access)| {
            let rest = path.strip_prefix(&here).ok().filter(|rest| *rest != Path::new(""))?;
            Some((there.join(rest), *access))
        });
        std::iter::once((there.clone(), access_at(&self.restrictions, &here))).chain(within).collect()
    }

    /// Returns the rule that closes a path because another mount shows the same file.
    #[expect(clippy::disallowed_methods, reason = "paths in a container, which its jail looks up")]
    fn origin_elsewhere(&self, path: &Path, parts: &[VolumePart]) -> Option<(&str, usize)> {
        let own = parts.iter().filter_map(|part| Some((part, path.strip_prefix(&part.target).ok()?)));
        let mut all = own.flat_map(|(own, rest)| {
            let file = own.part.join(rest);
            let others = parts.iter().filter(|part| part.volume == own.volume);
            others.filter_map(move |part| Some(below(&part.target, file.strip_prefix(&part.part).ok()?)))
        });
        all.find_map(|path| self.origin(&path))
    }
}

/// Joins paths; joining nothing would add a slash.
#[expect(clippy::disallowed_methods, reason = "paths in a container, which its jail looks up")]
pub(crate) fn below(folder: &Path, rest: &Path) -> PathBuf {
    if rest == Path::new("") { folder.to_owned() } else { folder.join(rest) }
}

/// Joins the first texts.
fn shown(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(SHOWN);
    let text = all[..all.len() - more].join(", ");
    if more == 0 { text } else { format!("{text} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(policies: &[(&str, &str)]) -> Files {
        let policy = |(name, rules): &(&str, &str)| {
            let rule = |word: &str| {
                let (path, access) = word.split_once('=').unwrap();
                serde_json::from_value(serde_json::json!({"path": path, "access": access})).unwrap()
            };
            let rules = rules.split_whitespace().map(rule).collect();
            PolicyFiles { policy: (*name).to_owned(), reports: name.starts_with("reports"), rules }
        };
        Files::new(policies.iter().map(policy).collect())
    }

    fn part(target: &str, volume: &str, part: &str) -> VolumePart {
        let changes = volume != "given";
        VolumePart { target: target.into(), volume: volume.into(), part: part.into(), changes }
    }

    fn text(rules: &FileRules) -> Vec<String> {
        rules.rules.iter().map(|rule| format!("{} {:?}", rule.path.display(), rule.access)).collect()
    }

    #[test]
    fn volume_is_closed_at_every_path_at_which_a_container_has_it() {
        let closed =
            |rules: &str, parts: &[VolumePart]| text(&files(&[("p", rules)]).rules(parts, &[]).unwrap());
        assert_eq!(closed("", &[part("/a", "v", "")]), [""; 0]);
        let two = [part("/a", "v", ""), part("/b", "v", "")];
        assert_eq!(closed("/a/x=None", &two), ["/a/x Hidden", "/b/x Hidden"]);
        assert_eq!(closed("/a=Read /a/x=Write", &two), ["/a Read", "/a/x Write", "/b Read", "/b/x Write"]);
        assert_eq!(closed("/a=Read /b=None", &two), ["/a Hidden", "/b Hidden"], "the strictest");
        let sub = [part("/a", "v", ""), part("/b/deep", "v", "x/y")];
        assert_eq!(closed("/a/x=None", &sub), ["/a/x Hidden", "/b/deep Hidden"]);
        assert_eq!(closed("/a/x/y/z=None", &sub), ["/a/x/y/z Hidden", "/b/deep/z Hidden"]);
        assert_eq!(closed("/b=Read", &sub), ["/a/x/y Read", "/b Read"]);
        let others = [part("/a", "v", "x"), part("/b", "v", "y"), part("/c", "w", "x")];
        assert_eq!(closed("/a/z=None", &others), ["/a/z Hidden"]);
    }

    #[test]
    fn volume_is_closed_as_in_the_containers_beside() {
        let closed = |rules: &str, own: &[VolumePart], beside: &[VolumePart]| {
            text(&files(&[("p", rules)]).rules(own, beside).unwrap())
        };
        let (own, beside) = ([part("/mnt", "v", "")], [part("/data", "v", ""), part("/w", "w", "")]);
        assert_eq!(closed("/data/x=None", &own, &[]), ["/data/x Hidden"]);
        assert_eq!(closed("/data/x=None", &own, &beside), ["/data/x Hidden", "/mnt/x Hidden"]);
        assert_eq!(closed("/w=Read", &own, &beside), ["/w Read"]);
        let deep = [part("/mnt", "v", "x/y")];
        assert_eq!(closed("/data/x=Read", &deep, &beside), ["/data/x Read", "/mnt Read"]);
        let rules = files(&[("p", "/data/x=None")]).rules(&own, &beside).unwrap();
        assert_eq!(rules.rules[1].name, "policy \"p\": spec.files[0].path: /mnt/x");
        assert_eq!(rules.shared, [Path::new("/mnt")]);
    }

    #[test]
    fn rule_is_named_by_its_policy_and_its_place() {
        let all = files(&[("one", "/b=Read /a=Read"), ("two", "/a=None")]);
        let rules =
            all.rules(&[part("/a", "v", ""), part("/c", "v", ""), part("/d", "given", "")], &[]).unwrap();
        let names: Vec<&str> = rules.rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "policy \"two\": spec.files[0].path: /a",
                "policy \"one\": spec.files[0].path: /b",
                "policy \"two\": spec.files[0].path: /c",
            ]
        );
        assert_eq!(rules.shared, [Path::new("/a"), Path::new("/c")]);
        let many = format!("/{}=Read", "a/".repeat(500) + "b");
        let many: Vec<String> = (0..128).map(|number| many.replace('b', &number.to_string())).collect();
        assert!(files(&[("p", &many.join(" "))]).rules(&[], &[]).unwrap_err().contains("at most"));
    }

    #[test]
    fn missing_rules_are_reported_only_if_each_of_their_policies_says_so() {
        let before = files(&[("one", "/a=Read")]);
        let found = |required: &[(&str, &str)]| before.unenforced(&files(required)).unwrap();
        let Unenforced::Reported(message) = found(&[("reports", "/b=Read"), ("two", "/a=Read")]) else {
            panic!("it is refused")
        };
        assert!(message.contains("\"reports\"") && !message.contains("No egress"), "{message}");
        for rules in [
            [("reports", "/b=Read"), ("two", "/c=None")],
            [("reports", "/b=Read"), ("two", "/b=Read")],
            [("reports", "/b=Read"), ("two", "/b=None")],
            [("reports", "/b=Read"), ("two", "/a=None")],
        ] {
            assert!(matches!(found(&rules), Unenforced::Refused(_)), "{rules:?}");
        }
    }

    #[test]
    fn missing_rules_are_named_and_removed_ones_are_not() {
        let before = files(&[("one", "/a=Read")]);
        assert_eq!(before.unenforced(&files(&[("one", "/a=Read")])), None);
        assert_eq!(before.unenforced(&files(&[])), None);
        let refused = |required: &[(&str, &str)]| match before.unenforced(&files(required)) {
            Some(Unenforced::Refused(message)) => message,
            other => panic!("{other:?}"),
        };
        let message = refused(&[("one", "/a=Read"), ("two", "/a/b=None /c=Read")]);
        for part in ["\"two\"", "/a/b, /c", "recreate the Pod"] {
            assert!(message.contains(part), "{message}");
        }
        let many: Vec<String> = (0..20).map(|number| format!("/{number}=None")).collect();
        let message = refused(&[("p", &many.join(" "))]);
        assert!(message.contains("and 12 more"), "{message}");
        assert_eq!(files(&[("p", "/a=Write")]).summary(), None);
        assert_eq!(
            files(&[("p", "/a=Read /b=None")]).summary().unwrap(),
            "files closed: /a (Read), /b (None)"
        );
    }
}
