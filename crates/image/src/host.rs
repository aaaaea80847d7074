//! `hutch/host`: this machine's programs under a root that was written afresh; `hutch/python-runtime` and `hutch/pause`
//! have the same root.
//!
//! Only `/usr` shows (and `/bin`, `/sbin`, `/lib*` where they are folders of their own), and of `/etc` a fixed list
//! that holds no secret. `/home`, `/root`, `/var`, `/opt` and everything else of the machine is absent.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::unfinished::{finish, unfinished};
use crate::{BuiltIn, Error, Hold, HostMount, ImageConfig, PAUSE, Resolved, SANDBOXD_PATH};

/// Counted up whenever the skeleton is written differently.
const VERSION: u64 = 4;
/// Largest file that is copied, in bytes (`ld.so.cache` and certificate bundles are some 100 kB).
const MAX_COPY_BYTES: u64 = 4 << 20;
/// Most entries that are copied of one folder.
const MAX_COPY_ENTRIES: usize = 4096;

/// Where programs are. Links among them are written as links, folders are mounted.
const PROGRAM_FOLDERS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Folders that a program may expect to find.
const EMPTY_FOLDERS: [(&str, u32); 20] = [
    (".hutch", 0o755),
    ("app", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/run", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o1777),
];
/// Files of `/etc` that are the same on every machine and contain no user names.
const COPIED_FILES: [&str; 17] = [
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "timezone",
    "os-release",
    "debian_version",
    "redhat-release",
    "alpine-release",
    "services",
    "protocols",
    "mime.types",
    "inputrc",
    "bash.bashrc",
    "gai.conf",
    "host.conf",
    "locale.alias",
    "ssl/openssl.cnf",
];
/// Folders of `/etc`: symlinks, and world-readable files without a private key.
const COPIED_FOLDERS: [&str; 7] = [
    "alternatives",
    "ld.so.conf.d",
    "ssl/certs",
    "pki/tls/certs",
    "pki/ca-trust/extracted/pem",
    "terminfo",
    "fonts",
];

/// Files that are written by us.
const WRITTEN_FILES: [(&str, &str); 10] = [
    (
        "passwd",
        "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    ),
    ("group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost\n127.0.1.1 sandbox\n::1 localhost ip6-localhost ip6-loopback\n"),
    ("hostname", "sandbox\n"),
    (
        "resolv.conf",
        "# The proxy of the sandbox, if it has one. Nothing else answers.\nnameserver 198.18.0.1\noptions timeout:1 attempts:1\n",
    ),
    (
        "nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    ),
    ("profile", "export PATH=\"${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}\"\n"),
    ("shells", "/bin/sh\n/bin/bash\n"),
    // During a run, placeholders lie in a workspace (`hutch run`); they must not be committed to git.
    ("gitconfig", "[core]\n\texcludesFile = /etc/gitignore\n"),
    ("gitignore", "/.envrc\n/.vscode/\n/.idea/\n/.mcp.json\n/.claude/\n/.cargo/config.toml\n"),
];

/// The search path inside.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Gives the image, writing its skeleton below `dir` when this machine has changed since the last time.
pub(crate) fn resolve(dir: &Path, image: BuiltIn) -> Result<Resolved, Error> {
    let root = Path::new("/");
    let name = format!("host-v{VERSION}-{:016x}", stamp(root));
    let skeleton = dir.join(&name);
    if !skeleton.is_dir() {
        let folder = unfinished(dir)?;
        write(root, folder.path())?;
        finish(folder, &skeleton)?;
    }
    let mut config =
        ImageConfig { env: vec![("PATH".to_owned(), PATH.to_owned())], ..ImageConfig::default() };
    match image {
        BuiltIn::Host => config.cmd = vec!["/bin/sh".into()],
        BuiltIn::PythonRuntime => {
            config.env.push(("SANDBOX_BASE_DIR".into(), "/app".into()));
            config.entrypoint = vec![SANDBOXD_PATH.into()];
            config.working_dir = Some("/app".into());
        }
        BuiltIn::Pause => config.entrypoint = PAUSE.map(Into::into).into(),
    }
    Ok(Resolved {
        id: format!("{}@{name}", image.name()),
        layers: vec![skeleton],
        mounts: if image == BuiltIn::Pause { Vec::new() } else { mounts(root) },
        config,
        substituted: None,
        wants_sandboxd: image != BuiltIn::Host,
        hold: Hold::default(),
    })
}

/// Changes when something changes that the skeleton was made from. Some thirty calls of stat, about 30 us.
fn stamp(root: &Path) -> u64 {
    // FNV-1a: the value only distinguishes versions; a collision gives no advantage.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325 ^ VERSION;
    let mut add = |value: u64| hash = (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3);
    for folder in PROGRAM_FOLDERS {
        match fs::symlink_metadata(root.join(folder)) {
            Ok(found) => add(u64::from(found.mode() & 0o170_000)),
            Err(_) => add(0),
        }
    }
    let etc = root.join("etc");
    for path in COPIED_FILES.iter().chain(&COPIED_FOLDERS) {
        match fs::symlink_metadata(etc.join(path)) {
            Ok(found) => {
                add(found.ino());
                add(found.mtime().cast_unsigned());
                add(found.mtime_nsec().cast_unsigned());
            }
            Err(_) => add(0),
        }
    }
    hash
}

fn mounts(root: &Path) -> Vec<HostMount> {
    let folders = PROGRAM_FOLDERS
        .iter()
        .filter(|folder| fs::symlink_metadata(root.join(folder)).is_ok_and(|found| found.is_dir()));
    folders.map(|f| HostMount { source: root.join(f), target: Path::new("/").join(f) }).collect()
}

fn write(root: &Path, skeleton: &Path) -> Result<(), Error> {
    for (folder, mode) in EMPTY_FOLDERS {
        make_folder(&skeleton.join(folder), mode)?;
    }
    for folder in PROGRAM_FOLDERS {
        let (source, target) = (root.join(folder), skeleton.join(folder));
        match fs::symlink_metadata(&source) {
            Ok(found) if found.is_symlink() => {
                let text = fs::read_link(&source).map_err(Error::file("read", &source))?;
                symlink(text, &target).map_err(Error::file("write", &target))?;
            }
            Ok(found) if found.is_dir() => make_folder(&target, 0o755)?,
            _ => {}
        }
    }
    // Mounted over by who runs the image, so that it needs no write to the root.
    write_file(&skeleton.join(&SANDBOXD_PATH[1..]), b"", 0o755)?;
    for (name, text) in WRITTEN_FILES {
        write_file(&skeleton.join("etc").join(name), text.as_bytes(), 0o644)?;
    }
    for name in COPIED_FILES {
        copy_entry(&root.join("etc").join(name), &skeleton.join("etc").join(name))?;
    }
    for name in COPIED_FOLDERS {
        copy_folder(&root.join("etc").join(name), &skeleton.join("etc").join(name))?;
    }
    let mtab = skeleton.join("etc/mtab");
    symlink("/proc/self/mounts", &mtab).map_err(Error::file("write", mtab))
}

fn make_folder(path: &Path, mode: u32) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(Error::file("make", path))?;
    // Separately, because the process's mask takes bits away on creation.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::file("set the mode of", path))
}

fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        make_folder(parent, 0o755)?;
    }
    fs::write(path, content).map_err(Error::file("write", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::file("set the mode of", path))
}

/// Copies a link as a link and a file as a file. What is not there, not world-readable, larger than the bound
/// or a private key is left out: the image then lacks a file, which is better than one too many.
fn copy_entry(source: &Path, target: &Path) -> Result<(), Error> {
    let Ok(found) = fs::symlink_metadata(source) else { return Ok(()) };
    if found.is_symlink() {
        let Ok(text) = fs::read_link(source) else { return Ok(()) };
        if let Some(parent) = target.parent().filter(|parent| !parent.exists()) {
            make_folder(parent, 0o755)?;
        }
        return symlink(text, target).map_err(Error::file("write", target));
    }
    match readable(source) {
        Some(content) => write_file(target, &content, 0o644),
        None => Ok(()),
    }
}

fn readable(source: &Path) -> Option<Vec<u8>> {
    const NOFOLLOW_NONBLOCK: i32 =
        rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits() as i32;
    let file = fs::OpenOptions::new().read(true).custom_flags(NOFOLLOW_NONBLOCK).open(source).ok()?;
    let found = file.metadata().ok()?;
    if !found.is_file() || found.mode() & 0o004 == 0 || found.len() > MAX_COPY_BYTES {
        return None;
    }
    let mut content = Vec::new();
    file.take(MAX_COPY_BYTES).read_to_end(&mut content).ok()?;
    let secret = content.windows(11).any(|part| part == b"PRIVATE KEY");
    (!secret).then_some(content)
}

fn copy_folder(source: &Path, target: &Path) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(source) else { return Ok(()) };
    make_folder(target, 0o755)?;
    let entries: Vec<PathBuf> = entries.flatten().take(MAX_COPY_ENTRIES).map(|entry| entry.path()).collect();
    for path in entries {
        if let Some(name) = path.file_name() {
            copy_entry(&path, &target.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in
            ["usr/bin", "lib64", "etc/ssl/certs", "etc/ssl/private", "etc/alternatives", "home/me", "root"]
        {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        symlink("usr/bin", root.path().join("bin")).unwrap();
        symlink("/usr/bin/vim", root.path().join("etc/alternatives/vi")).unwrap();
        for (file, text) in [
            ("etc/passwd", "other:x:1:1::/home/me:/bin/sh"),
            ("etc/shadow", "hash"),
            ("etc/ld.so.cache", "cache"),
            ("etc/ssl/certs/good.pem", "-----BEGIN CERTIFICATE-----"),
            ("etc/ssl/certs/bad.pem", "-----BEGIN PRIVATE KEY-----"),
            ("etc/ssl/certs/hidden.pem", "-----BEGIN CERTIFICATE-----"),
            ("etc/services", "http 80/tcp"),
        ] {
            fs::write(root.path().join(file), text).unwrap();
            fs::set_permissions(root.path().join(file), fs::Permissions::from_mode(0o644)).unwrap();
        }
        let hidden = root.path().join("etc/ssl/certs/hidden.pem");
        fs::set_permissions(hidden, fs::Permissions::from_mode(0o600)).unwrap();
        root
    }

    #[test]
    fn the_skeleton_holds_what_programs_need_and_no_secret() {
        let (root, out) = (machine(), tempfile::tempdir().unwrap());
        write(root.path(), out.path()).unwrap();
        let has = |path: &str| fs::symlink_metadata(out.path().join(path)).is_ok();
        for path in
            ["bin", "usr", "lib64", "etc/ld.so.cache", "etc/ssl/certs/good.pem", "etc/alternatives/vi", "tmp"]
        {
            assert!(has(path), "{path} is missing");
        }
        for path in
            ["etc/shadow", "etc/ssl/private", "etc/ssl/certs/bad.pem", "etc/ssl/certs/hidden.pem", "home/me"]
        {
            assert!(!has(path), "{path} must not be there");
        }
        let passwd = fs::read_to_string(out.path().join("etc/passwd")).unwrap();
        assert!(passwd.contains("root") && !passwd.contains("other"), "{passwd}");
        assert_eq!(fs::read_link(out.path().join("bin")).unwrap(), Path::new("usr/bin"));
        assert_eq!(fs::metadata(out.path().join("tmp")).unwrap().mode() & 0o7777, 0o1777);
    }

    #[test]
    fn only_real_program_folders_are_mounted() {
        let root = machine();
        let targets: Vec<PathBuf> = mounts(root.path()).into_iter().map(|mount| mount.target).collect();
        assert_eq!(targets, [PathBuf::from("/usr"), PathBuf::from("/lib64")]);
    }

    #[test]
    fn the_stamp_follows_the_machine() {
        let root = machine();
        let before = stamp(root.path());
        assert_eq!(before, stamp(root.path()));
        fs::remove_file(root.path().join("etc/ld.so.cache")).unwrap();
        assert_ne!(before, stamp(root.path()));
    }
}
