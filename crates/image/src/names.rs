//! Looks up user and group names in an image's own `/etc`.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::beneath::Folder;

/// Largest `passwd` or `group` file that is read, in bytes.
const MAX_ACCOUNTS_BYTES: u64 = 1 << 20;
/// Maximum further groups of a user.
const MAX_GROUPS: usize = 1024;

/// Numbers of a user, in ids inside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Further groups that the image's `group` names the user in.
    pub groups: Vec<u32>,
    /// Home folder as the image's `passwd` names it.
    pub home: Option<String>,
}

/// Reads `user`, `user:group`, or numbers in their place. Names are looked up in the topmost layer that has the file.
pub(crate) fn look_up(layers: &[PathBuf], spec: &str) -> Result<Account, Error> {
    let (user, group) = match spec.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (spec, None),
    };
    let passwd = read_accounts(layers, "etc/passwd");
    let line = fields(&passwd).find(|f| f.len() >= 4 && (f[0] == user || f[2] == user));
    let mut account = match (&line, user.parse::<u32>()) {
        (Some(f), _) => {
            let home = f.get(5).filter(|home| home.starts_with('/')).map(|home| (*home).to_owned());
            let groups = groups_of(layers, f[0]);
            Account { uid: number(f[2]), gid: number(f[3]), groups, home }
        }
        (None, Ok(uid)) => Account { uid, ..Account::default() },
        (None, Err(_)) if user.is_empty() => Account::default(),
        (None, Err(_)) => return Err(Error::UnknownAccount { kind: "user", name: user.into() }),
    };
    if let Some(group) = group.filter(|g| !g.is_empty()) {
        let file = read_accounts(layers, "etc/group");
        account.gid = match (fields(&file).find(|f| f.len() >= 3 && f[0] == group), group.parse::<u32>()) {
            (Some(f), _) => number(f[2]),
            (None, Ok(gid)) => gid,
            (None, Err(_)) => return Err(Error::UnknownAccount { kind: "group", name: group.into() }),
        };
    }
    Ok(account)
}

/// Returns the groups whose members name the user.
fn groups_of(layers: &[PathBuf], user: &str) -> Vec<u32> {
    let file = read_accounts(layers, "etc/group");
    let lines = fields(&file).filter(|f| f.len() >= 4 && f[3].split(',').any(|member| member == user));
    lines.map(|f| number(f[2])).take(MAX_GROUPS).collect()
}

fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

/// A malformed number must not become root.
fn number(text: &str) -> u32 {
    text.parse().unwrap_or(65534)
}

fn read_accounts(layers: &[PathBuf], file: &str) -> String {
    layers.iter().find_map(|layer| read_beneath(layer, file)).unwrap_or_default()
}

fn read_beneath(layer: &Path, file: &str) -> Option<String> {
    let mut text = String::new();
    let open = Folder::open(layer).ok()?.open_file(Path::new(file)).ok()?;
    open.take(MAX_ACCOUNTS_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::fs::write(
            dir.path().join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\napp:x:10:20::/app:/bin/sh\nbad:x:zero:0::/:\n",
        )
        .unwrap();
        let groups = "staff:x:50:\nssl:x:60:other,app\napplication:x:70:apple\nmail:x:8:app\n";
        std::fs::write(dir.path().join("etc/group"), groups).unwrap();
        let layers = [dir.path().to_owned()];
        let ids = |spec: &str| look_up(&layers, spec).map(|a| (a.uid, a.gid));
        assert_eq!(ids("").unwrap(), (0, 0));
        assert_eq!(ids("app").unwrap(), (10, 20));
        assert_eq!(ids("10").unwrap(), (10, 20));
        assert_eq!(ids("77").unwrap(), (77, 0));
        assert_eq!(ids("app:staff").unwrap(), (10, 50));
        assert_eq!(ids("app:9").unwrap(), (10, 9));
        assert_eq!(ids("bad").unwrap().0, 65534);
        assert!(ids("nobody-here").is_err());
        assert!(ids("app:no-group").is_err());
        let app = look_up(&layers, "10").unwrap();
        assert_eq!((app.home.as_deref(), app.groups), (Some("/app"), vec![60, 8]));
    }

    #[test]
    fn a_link_out_of_the_image_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("etc/passwd")).unwrap();
        assert!(look_up(&[dir.path().to_owned()], "root").is_err());
    }
}
