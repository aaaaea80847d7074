//! Copies with `hutch cp` from a sandbox whose `tar` is the attacker's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::harness::{Up, binary, fixture, refused, succeeded, text};

/// A Sandbox that answers `tar` with a stream of its own.
struct Hostile {
    up: Up,
}

impl Hostile {
    fn start() -> Hostile {
        let up = Up::start(&[]);
        let notes = std::fs::read_to_string(fixture("notes.yaml")).expect("the fixture");
        // Its own `tar` is found first.
        let hostile = notes.replace(
            "command: [sleep, infinity]",
            "command: [sleep, infinity]\n        env: [{name: PATH, value: '/data:/usr/bin:/bin'}]",
        );
        assert_ne!(notes, hostile);
        let file = up.folder().join("hostile.yaml");
        std::fs::write(&file, hostile).expect("the Sandbox is written");
        up.ok(&format!("apply -f {}", file.display()));
        Hostile { up }
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut hutch = Command::new(binary());
        hutch.args(words).env("KUBECONFIG", self.up.kubeconfig()).env("HOME", self.up.folder());
        hutch.stdin(Stdio::null()).output().expect("hutch starts")
    }

    /// Copies `/data/x` of the sandbox, of which `tar` sends what the script adds.
    fn copy(&self, script: &str, into: &Path) -> Output {
        let script = format!(
            "#!/usr/bin/python3\nimport io, sys, tarfile\nout = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')\n\
             def add(name, kind=tarfile.REGTYPE, link='', data=b'evil', mode=0o644):\n    entry = tarfile.TarInfo(name)\n    \
             entry.type, entry.linkname, entry.mode = kind, link, mode\n    \
             entry.size = len(data) if kind == tarfile.REGTYPE else 0\n    out.addfile(entry, io.BytesIO(data))\n\
             {script}\nout.close()\n"
        );
        let install = "printf %s \"$1\" > /data/tar && chmod +x /data/tar";
        let installed = self.run(&["exec", "notes", "--", "/bin/sh", "-c", install, "sh", &script]);
        succeeded("the sandbox makes its tar", &installed);
        self.run(&["cp", "notes:/data/x", into.to_str().expect("a path")])
    }

    /// A folder with `in`, into which is copied, and beside it a file that must not be reached.
    fn destination(&self, name: &str) -> PathBuf {
        let folder = self.up.folder().join(name);
        std::fs::create_dir_all(folder.join("in")).expect("a folder");
        std::fs::write(folder.join("secret"), "secret").expect("a file");
        folder
    }
}

/// Everything below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(below(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

/// Nothing that was copied leads out of the folder.
#[track_caller]
fn stays_inside(folder: &Path) {
    let top = folder.join("in").canonicalize().expect("a folder");
    for path in below(&top) {
        if let Ok(leads_to) = path.canonicalize() {
            assert!(leads_to.starts_with(&top), "{} leads to {}", path.display(), leads_to.display());
        }
        let read = std::fs::read(&path).unwrap_or_default();
        assert_ne!(read, b"secret", "{} shows a file outside", path.display());
    }
    assert_eq!(std::fs::read(folder.join("secret")).expect("the file"), b"secret");
}

#[test]
fn hard_link_does_not_move_a_symbolic_link_out() {
    hutch_testkit::require!(root, kubectl, python);
    let hostile = Hostile::start();
    // From `x/a/b/c` these links lead to places inside; from `x` to the folder above the destination.
    for (name, link) in [("one", "../../../secret"), ("two", "../../../../secret")] {
        let folder = hostile.destination(name);
        let script = format!(
            "add('x/a/b/c/d/up', tarfile.SYMTYPE, '{link}'); add('x/up', tarfile.LNKTYPE, 'x/a/b/c/d/up'); add('x/after')"
        );
        let output = hostile.copy(&script, &folder.join("in"));
        stays_inside(&folder);
        assert!(folder.join("in/x/up").symlink_metadata().is_err(), "{}", text(&output.stderr));
        refused(&output, 1, &["left out: x/up: a hard link"]);
        assert_eq!(std::fs::read(folder.join("in/x/after")).expect("the file after it"), b"evil");
    }
}

#[test]
fn hard_link_gives_no_second_name_to_a_local_file() {
    hutch_testkit::require!(root, kubectl, python);
    use std::os::unix::fs::MetadataExt;
    let hostile = Hostile::start();
    let folder = hostile.destination("own");
    std::fs::create_dir_all(folder.join("in/x")).expect("a folder");
    let own = folder.join("in/x/own");
    std::fs::write(&own, "own").expect("a file");
    let output = hostile.copy("add('x/public', tarfile.LNKTYPE, 'x/own')", &folder.join("in"));
    assert!(folder.join("in/x/public").symlink_metadata().is_err(), "{}", text(&output.stderr));
    assert_eq!(std::fs::metadata(&own).expect("the file").nlink(), 1);
    // Links between files of the stream are made.
    let output =
        hostile.copy("add('x/a', mode=0o6755); add('x/b', tarfile.LNKTYPE, 'x/a')", &folder.join("in"));
    succeeded("a copy with a hard link", &output);
    let made = std::fs::metadata(folder.join("in/x/b")).expect("the link");
    assert_eq!((made.nlink(), made.mode() & 0o7777), (2, 0o755), "and no set-id bit");
    stays_inside(&folder);
}

#[test]
fn folders_without_end_are_refused() {
    hutch_testkit::require!(root, kubectl, python);
    let hostile = Hostile::start();
    let folder = hostile.destination("deep");
    let output = hostile.copy("add('x/' + 'd/' * 1500 + 'f')", &folder.join("in"));
    refused(&output, 1, &["folders deep"]);
    assert_eq!(below(&folder.join("in")), Vec::<PathBuf>::new());
    let named = hostile.copy("add('x/a\\n\\x1b[2Jhutch cp: done', tarfile.FIFOTYPE)", &folder.join("in"));
    refused(&named, 1, &["left out: x/a; [2Jhutch cp: done"]);
}

#[test]
fn file_without_end_leaves_room_on_the_disk() {
    hutch_testkit::require!(root, kubectl, python);
    let hostile = Hostile::start();
    let folder = hostile.destination("full");
    let disk = Disk::mount(folder.join("in"));
    let endless = "entry = tarfile.TarInfo('x/f'); entry.size = 1 << 40\n\
                   sys.stdout.buffer.write(entry.tobuf(tarfile.GNU_FORMAT))\n\
                   while True: sys.stdout.buffer.write(b'0' * (1 << 20))";
    let output = hostile.copy(endless, &disk.0);
    refused(&output, 1, &["would stay free"]);
    let made = below(&disk.0);
    assert!(made.iter().all(|path| path.is_dir()), "{made:?}");
}

/// A small disk, until it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Disk {
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=280m", "tmpfs"]).arg(&at).output();
        succeeded("mount", &mounted.expect("mount"));
        Disk(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
