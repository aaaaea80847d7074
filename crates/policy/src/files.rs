//! Files and folders of a sandbox that its program may not read or write.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::shown;

/// Maximum bytes of a path.
pub(crate) const LENGTH: usize = 1024;
/// Folders of each container of a server that are made anew by the kernel, or that its runtime needs.
pub(crate) const RESERVED: [&str; 4] = ["/proc", "/sys", "/dev", "/.hutch"];

/// Reason why a text is not the path of a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a path of a rule: absolute, below `/`, without `.`, `..` and empty parts, at most {LENGTH} bytes"
)]
pub struct InvalidPath(String);

/// Access to a file, or to a folder and everything in it. The lesser one is stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Access {
    /// It appears empty.
    None,
    /// It can be read.
    Read,
    /// It can be read and written, as far as the sandbox can anyway. It opens nothing.
    Write,
}

/// Absolute path without parts that have no meaning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FilePath(String);

impl FilePath {
    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Returns true if it is written as a pattern, which it is not: it names one file.
    pub(crate) fn is_pattern(&self) -> bool {
        self.0.contains(['*', '?'])
    }

    /// Returns the folder at or below which a server closes nothing, if the path is there.
    pub(crate) fn reserved(&self) -> Option<&'static str> {
        RESERVED.into_iter().find(|reserved| self.as_path().starts_with(reserved))
    }
}

impl TryFrom<String> for FilePath {
    type Error = InvalidPath;

    fn try_from(text: String) -> Result<FilePath, InvalidPath> {
        let mut parts = Path::new(&text).components();
        let absolute = parts.next() == Some(Component::RootDir);
        let normal = parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
        // Components hide empty parts and single dots.
        let plain = !text[1.min(text.len())..].split('/').any(|part| matches!(part, "" | "." | ".."));
        match absolute && normal && plain && text.len() <= LENGTH && !text.chars().any(char::is_control) {
            true => Ok(FilePath(text)),
            false => Err(InvalidPath(shown(&text))),
        }
    }
}

impl From<FilePath> for String {
    fn from(path: FilePath) -> String {
        path.0
    }
}

/// Rule for a file, or a folder and everything in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRule {
    /// Path.
    pub path: FilePath,
    /// Access.
    pub access: Access,
}

/// Access at the paths at which it differs from that of the folder in which they are, folders first.
pub type Restrictions = Vec<(PathBuf, Access)>;

/// Returns the access to a path. `Write` without a restriction.
pub fn access_at(restrictions: &[(PathBuf, Access)], path: &Path) -> Access {
    let covering = restrictions.iter().rev().find(|(folder, _)| path.starts_with(folder));
    covering.map_or(Access::Write, |(_, access)| *access)
}

/// Paths with an access each, by which the access to ascending paths is found: in one pass, since a folder comes before what is
/// in it. The most specific path counts, and of equal ones the last.
struct Ascending<'a> {
    paths: Vec<(&'a Path, Access)>,
    next: usize,
    /// Those that cover the present path, the outermost first.
    covering: Vec<(&'a Path, Access)>,
}

impl<'a> Ascending<'a> {
    fn new(mut paths: Vec<(&'a Path, Access)>) -> Ascending<'a> {
        paths.sort_by_key(|(path, _)| *path);
        Ascending { paths, next: 0, covering: Vec::new() }
    }

    fn access(&mut self, path: &Path) -> Access {
        while let Some(one) = self.paths.get(self.next).copied().filter(|(other, _)| *other <= path) {
            self.leave(one.0);
            self.covering.push(one);
            self.next += 1;
        }
        self.leave(path);
        self.covering.last().map_or(Access::Write, |(_, access)| *access)
    }

    /// Leaves folders in which a path is not.
    fn leave(&mut self, path: &Path) {
        while self.covering.last().is_some_and(|(folder, _)| !path.starts_with(folder)) {
            self.covering.pop();
        }
    }
}

fn borrowed(restrictions: &[(PathBuf, Access)]) -> Vec<(&Path, Access)> {
    restrictions.iter().map(|(path, access)| (path.as_path(), *access)).collect()
}

/// Returns the paths at which some restrictions allow more than others require.
pub fn looser<'a>(these: &'a [(PathBuf, Access)], required: &'a [(PathBuf, Access)]) -> BTreeSet<&'a Path> {
    let all: BTreeSet<&Path> = required.iter().chain(these).map(|(path, _)| path.as_path()).collect();
    let [mut these, mut required] = [these, required].map(|one| Ascending::new(borrowed(one)));
    all.into_iter().filter(|path| these.access(path) > required.access(path)).collect()
}

/// Combines the rules of several policies: the strictest access counts.
pub fn restrictions(policies: &[&[FileRule]]) -> Restrictions {
    let rules = policies.iter().map(|rules| rules.iter().map(|rule| (rule.path.as_path(), rule.access)));
    strictest(rules.map(Iterator::collect).collect())
}

/// Combines restrictions: the strictest access counts.
pub fn combined(all: &[Restrictions]) -> Restrictions {
    strictest(all.iter().map(|restrictions| borrowed(restrictions)).collect())
}

fn strictest(all: Vec<Vec<(&Path, Access)>>) -> Restrictions {
    let paths: BTreeSet<&Path> = all.iter().flatten().map(|(path, _)| *path).collect();
    let mut all: Vec<Ascending<'_>> = all.into_iter().map(Ascending::new).collect();
    let (mut found, mut outer) = (Restrictions::new(), Vec::<(&Path, Access)>::new());
    for path in paths {
        let strictest = all.iter_mut().map(|one| one.access(path)).min().unwrap_or(Access::Write);
        while outer.last().is_some_and(|(folder, _)| !path.starts_with(folder)) {
            outer.pop();
        }
        if outer.last().map_or(Access::Write, |(_, access)| *access) != strictest {
            found.push((path.to_owned(), strictest));
            outer.push((path, strictest));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Access to a path by the rules of one policy as the documents define it.
    fn access(rules: &[FileRule], path: &Path) -> Access {
        let covering = rules.iter().filter(|rule| path.starts_with(rule.path.as_path()));
        covering
            .max_by_key(|rule| rule.path.as_path().components().count())
            .map_or(Access::Write, |rule| rule.access)
    }

    /// Paths of rules.
    const PATHS: [&str; 6] = ["/a", "/a/b", "/a/b/c", "/a/c", "/ab", "/d"];
    /// Paths below these, and outside of them.
    const OTHERS: [&str; 4] = ["/a/b/c/d", "/a/c/d", "/abc", "/e"];

    /// Rules of several policies.
    type Policies = Vec<Vec<FileRule>>;

    /// One rule for each of some paths.
    fn any_rules() -> impl Strategy<Value = Vec<FileRule>> {
        let access = prop::sample::select(vec![Access::None, Access::Read, Access::Write]);
        let rules = prop::collection::btree_map(prop::sample::select(PATHS.to_vec()), access, 0..5);
        rules.prop_map(|rules| {
            let rule = |(path, access): (&str, Access)| FileRule {
                path: path.to_owned().try_into().unwrap(),
                access,
            };
            rules.into_iter().map(rule).collect::<Vec<_>>()
        })
    }

    /// Policies, and the same ones in any order.
    fn any_policies_twice() -> impl Strategy<Value = (Policies, Policies)> {
        prop::collection::vec(any_rules(), 0..4).prop_flat_map(|policies| {
            let others: Vec<_> = policies.iter().cloned().map(|rules| Just(rules).prop_shuffle()).collect();
            (Just(policies), others.prop_shuffle())
        })
    }

    fn combined_rules(policies: &[Vec<FileRule>]) -> Restrictions {
        let policies: Vec<&[FileRule]> = policies.iter().map(Vec::as_slice).collect();
        restrictions(&policies)
    }

    proptest! {
        #[test]
        fn access_to_a_file_is_that_of_the_strictest_policy(
            policies in prop::collection::vec(any_rules(), 0..4),
            more in any_rules(),
        ) {
            let before = combined_rules(&policies);
            let with_more: Policies = policies.iter().cloned().chain([more]).collect();
            let after = combined_rules(&with_more);
            for path in PATHS.into_iter().chain(OTHERS).map(Path::new) {
                let strictest = with_more.iter().map(|rules| access(rules, path)).min();
                prop_assert_eq!(Some(access_at(&after, path)), strictest, "{:?}", path);
                prop_assert!(access_at(&after, path) <= access_at(&before, path), "{path:?}");
            }
            prop_assert!(looser(&after, &before).is_empty());
        }

        #[test]
        fn order_of_policies_and_their_rules_has_no_meaning_for_files(
            (policies, others) in any_policies_twice(),
        ) {
            prop_assert_eq!(combined_rules(&policies), combined_rules(&others));
        }
    }

    fn rules(text: &str) -> Vec<FileRule> {
        let rule = |word: &str| {
            let (path, access) = word.split_once('=').unwrap();
            let access = match access {
                "none" => Access::None,
                "read" => Access::Read,
                _ => Access::Write,
            };
            FileRule { path: FilePath::try_from(path.to_owned()).unwrap(), access }
        };
        text.split_whitespace().map(rule).collect()
    }

    #[test]
    fn most_specific_path_counts_within_a_policy_and_the_strictest_policy() {
        let combined = |policies: &[&str]| {
            let policies: Vec<Vec<FileRule>> = policies.iter().map(|text| rules(text)).collect();
            let policies: Vec<&[FileRule]> = policies.iter().map(Vec::as_slice).collect();
            let shown = restrictions(&policies).into_iter();
            shown.map(|(path, access)| format!("{} {access:?}", path.display())).collect::<Vec<_>>()
        };
        assert_eq!(combined(&[]), [""; 0]);
        assert_eq!(combined(&["/w=write"]), [""; 0], "as without a rule");
        assert_eq!(combined(&["/w=read /w/out=write"]), ["/w Read", "/w/out Write"]);
        assert_eq!(combined(&["/w/out=write /w=read"]), ["/w Read", "/w/out Write"], "in any order");
        assert_eq!(combined(&["/w=read /w/out=write", "/w/out=read"]), ["/w Read"]);
        assert_eq!(combined(&["/w=read", "/w=write", "/w/key=none"]), ["/w Read", "/w/key None"]);
        assert_eq!(combined(&["/w=none", "/w/x=write"]), ["/w None"], "one more policy opens nothing");
        assert_eq!(combined(&["/work=read"]), ["/work Read"]);
    }

    #[test]
    fn looser_restrictions_are_named_by_their_paths() {
        let paths = |these: &str, required: &str| {
            let [these, required] = [these, required].map(|text| restrictions(&[&rules(text)]));
            looser(&these, &required).iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths("", ""), [""; 0]);
        assert_eq!(paths("", "/a=read /b=none"), ["/a", "/b"]);
        assert_eq!(paths("/a=none", "/a=read"), [""; 0], "stricter");
        assert_eq!(paths("/a=read", "/a=none"), ["/a"]);
        assert_eq!(paths("/a=none", "/a/b=read"), [""; 0], "in a stricter folder");
        assert_eq!(paths("/a=read /a/b=write", "/a=read"), ["/a/b"], "an exception that is gone");
        assert_eq!(paths("/a=read", ""), [""; 0]);
    }

    /// One tenant's rules kept the decisions for all waiting.
    #[test]
    fn many_rules_are_combined_in_one_pass() {
        let deep = |policy: usize, depth: usize| format!("/{policy}{}=read", "/a".repeat(depth));
        let policies: Vec<Vec<FileRule>> = (0..8)
            .map(|policy| rules(&(1..400).map(|depth| deep(policy, depth)).collect::<Vec<_>>().join(" ")))
            .collect();
        let all = combined_rules(&policies);
        assert_eq!(all.len(), 8, "the outermost of each policy");
        let many: Restrictions =
            policies.iter().flatten().map(|rule| (rule.path.as_path().to_owned(), Access::None)).collect();
        assert_eq!(looser(&all, &many).len(), 8 * 399);
    }

    #[test]
    fn path_is_absolute_and_plain() {
        for path in ["/a", "/a/b.c", "/workspace/.git/hooks"] {
            FilePath::try_from(path.to_owned()).unwrap();
        }
        for path in
            ["", "/", "a", "./a", "/a/", "/a//b", "/a/./b", "/a/../b", "/..", "/a\n", &"/a".repeat(600)]
        {
            assert!(FilePath::try_from(path.to_owned()).is_err(), "{path}");
        }
    }
}
