use std::os::unix::fs::symlink;

use std::io;

use tar::{Builder, EntryType, Header};

use super::*;

/// An entry whose name and link are written as they are, which the library would not do.
struct Made(EntryType, &'static str, &'static str, &'static [u8], u32);

fn file(name: &'static str, content: &'static [u8]) -> Made {
    Made(EntryType::Regular, name, "", content, 0o644)
}

fn link(kind: EntryType, name: &'static str, to: &'static str) -> Made {
    Made(kind, name, to, b"", 0o777)
}

fn stream(entries: &[Made]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for Made(kind, name, link, content, mode) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        header.as_gnu_mut().expect("a GNU header").set_real_size(0);
        let fields = header.as_old_mut();
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, *content).expect("appended");
    }
    builder.into_inner().expect("a stream")
}

/// Unpacks the requested `got` into a folder `in` beside a folder `out`, and gives back the outcome.
fn unpacked(folder: &Path, entries: &[Made]) -> anyhow::Result<LeftOut> {
    let inside = folder.join("in");
    std::fs::create_dir_all(&inside).expect("mkdir");
    std::fs::create_dir_all(folder.join("out")).expect("mkdir");
    std::fs::write(folder.join("out/kept"), "kept").expect("written");
    let to = Destination::open(&inside, Path::new("got")).expect("a destination");
    let outcome = unpack(&stream(entries)[..], Path::new("got"), &to);
    let outside: Vec<_> = std::fs::read_dir(folder.join("out")).expect("a folder").collect();
    assert_eq!(outside.len(), 1, "nothing was made outside");
    assert_eq!(std::fs::read(folder.join("out/kept")).expect("read"), b"kept", "nothing was changed outside");
    let names: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    outcome
}

#[test]
fn files_folders_and_links_are_made() {
    let folder = tempfile::tempdir().expect("tempdir");
    let left_out = unpacked(
        folder.path(),
        &[
            Made(EntryType::Directory, "./got/", "", b"", 0o555),
            Made(EntryType::Regular, "./got/a", "", b"text", 0o4755),
            file("got/deep/er/b", b"b"),
            link(EntryType::Symlink, "got/deep/up", "../a"),
            link(EntryType::Link, "got/same", "got/a"),
        ],
    )
    .expect("unpacked");
    assert_eq!(left_out.1, 0, "{left_out:?}");
    let got = folder.path().join("in/got");
    assert_eq!(std::fs::read(got.join("a")).expect("a"), b"text");
    assert_eq!(std::fs::metadata(got.join("a")).expect("a").mode() & 0o7000, 0, "no set-id bit");
    assert_eq!(std::fs::read(got.join("deep/er/b")).expect("b"), b"b");
    assert_eq!(std::fs::read(got.join("deep/up")).expect("through the link"), b"text");
    assert_eq!(std::fs::metadata(got.join("same")).expect("same").nlink(), 2);
    let hidden = std::fs::read_dir(&got).expect("a folder").flatten();
    let hidden = hidden.filter(|entry| entry.file_name().as_bytes().starts_with(b".")).count();
    assert_eq!(hidden, 0, "nothing half done is left");
}

#[test]
fn a_name_that_leads_out_ends_the_copy() {
    for name in ["../out/evil", "got/../../out/evil", "/tmp/hutch-evil", "got/..", "other", "gotten/x", "."] {
        let folder = tempfile::tempdir().expect("tempdir");
        let error = unpacked(folder.path(), &[file("got/a", b"a"), file(name, b"evil")]).expect_err(name);
        assert!(format!("{error:#}").contains("entry"), "{error:#}");
        assert!(!Path::new("/tmp/hutch-evil").exists());
    }
}

#[test]
fn a_link_that_leads_out_is_left_out_and_never_followed() {
    for to in ["/etc", "..", "../..", "../out", "a/../../..", "deep/up/..", "", "./../out"] {
        let folder = tempfile::tempdir().expect("tempdir");
        let entries =
            [file("got/a/b/c", b"c"), link(EntryType::Symlink, "got/link", to), file("got/after", b"after")];
        let left_out = unpacked(folder.path(), &entries).expect("unpacked");
        assert_eq!(left_out.1, 1, "{to:?}");
        let got = folder.path().join("in/got");
        assert!(got.join("link").symlink_metadata().is_err(), "{to:?}");
        assert!(got.join("after").exists());
    }
}

#[test]
fn nothing_is_written_through_a_link() {
    let folder = tempfile::tempdir().expect("tempdir");
    // Both lead to places inside, and still neither is walked through.
    let entries =
        [file("got/real/x", b"x"), link(EntryType::Symlink, "got/way", "real"), file("got/way/evil", b"y")];
    assert!(unpacked(folder.path(), &entries).is_err());
    assert!(!folder.path().join("in/got/real/evil").exists());

    // One that was here before.
    let folder = tempfile::tempdir().expect("tempdir");
    std::fs::create_dir_all(folder.path().join("in/got")).expect("mkdir");
    symlink("../../out", folder.path().join("in/got/way")).expect("symlink");
    assert!(unpacked(folder.path(), &[file("got/way/evil", b"y")]).is_err());
    symlink("../../out/kept", folder.path().join("in/got/kept")).expect("symlink");
    unpacked(folder.path(), &[file("got/kept", b"new")]).expect("in its place");
    assert!(folder.path().join("in/got/kept").symlink_metadata().expect("stat").is_file());
}

#[test]
fn a_hard_link_reaches_only_what_is_copied() {
    for to in ["/etc/passwd", "../out/kept", "got/../../out/kept", "got/missing", ""] {
        let folder = tempfile::tempdir().expect("tempdir");
        let outcome = unpacked(folder.path(), &[file("got/a", b"a"), link(EntryType::Link, "got/x", to)]);
        assert!(outcome.is_err(), "{to:?}");
        assert!(!folder.path().join("in/got/x").exists(), "{to:?}");
    }
}

#[test]
fn hard_link_to_a_symbolic_link_is_left_out() {
    let folder = tempfile::tempdir().expect("tempdir");
    let left_out = unpacked(
        folder.path(),
        &[
            // Leads to the top of what is copied from there, and out of it from the place of the hard link.
            link(EntryType::Symlink, "got/a/b/up", "../../out"),
            link(EntryType::Link, "got/up", "got/a/b/up"),
            file("got/after", b"after"),
        ],
    )
    .expect("unpacked");
    assert_eq!(left_out.1, 1, "{left_out:?}");
    let got = folder.path().join("in/got");
    assert!(got.join("up").symlink_metadata().is_err());
    assert!(got.join("a/b/up").symlink_metadata().is_ok() && got.join("after").exists());
    let drafts = std::fs::read_dir(&got).expect("a folder").flatten();
    assert_eq!(drafts.filter(|entry| entry.file_name().as_bytes().starts_with(b".")).count(), 0);
}

#[test]
fn hard_link_to_a_file_that_was_here_before_is_left_out() {
    let folder = tempfile::tempdir().expect("tempdir");
    let got = folder.path().join("in/got");
    std::fs::create_dir_all(&got).expect("mkdir");
    std::fs::write(got.join("own"), "own").expect("written");
    let left_out = unpacked(
        folder.path(),
        &[
            link(EntryType::Link, "got/x", "got/own"),
            file("got/a", b"a"),
            link(EntryType::Link, "got/b", "got/a"),
        ],
    )
    .expect("unpacked");
    assert_eq!(left_out.1, 1, "{left_out:?}");
    assert_eq!(std::fs::metadata(got.join("own")).expect("own").nlink(), 1);
    assert_eq!(std::fs::metadata(got.join("b")).expect("b").nlink(), 2);
}

#[test]
fn folders_too_deep_end_the_copy() {
    let folder = tempfile::tempdir().expect("tempdir");
    let to = Destination::open(folder.path(), Path::new("got")).expect("a destination");
    for (depth, taken) in [(DEPTH_MAX, true), (DEPTH_MAX + 1, false)] {
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        let path = format!("got/{}", "d/".repeat(depth));
        builder.append_data(&mut header, path, io::empty()).expect("appended");
        let stream = builder.into_inner().expect("a stream");
        assert_eq!(unpack(&stream[..], Path::new("got"), &to).is_ok(), taken, "{depth}");
    }
}

#[test]
fn devices_and_pipes_are_left_out() {
    let folder = tempfile::tempdir().expect("tempdir");
    let kinds = [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::new(b'?')];
    let entries: Vec<Made> = kinds.into_iter().map(|kind| link(kind, "got/x", "")).collect();
    assert_eq!(unpacked(folder.path(), &entries).expect("unpacked").1, kinds.len());
    assert!(!folder.path().join("in/got/x").exists());
}

#[test]
fn a_stream_that_breaks_off_leaves_no_half_file() {
    let folder = tempfile::tempdir().expect("tempdir");
    let whole = stream(&[file("got/a", &[b'a'; 5000])]);
    let to = Destination::open(folder.path(), Path::new("got")).expect("a destination");
    for cut in [100, 512, 600, 5511] {
        let outcome = unpack(&whole[..cut], Path::new("got"), &to);
        assert!(outcome.is_err(), "cut at {cut}");
        assert!(
            std::fs::read_dir(folder.path().join("got")).is_ok_and(|mut all| all.next().is_none())
                || cut <= 512
        );
    }
}

#[test]
fn a_name_without_end_is_not_kept_in_memory() {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let endless = header.as_bytes().chain(io::repeat(b'x'));
    let folder = tempfile::tempdir().expect("tempdir");
    let to = Destination::open(folder.path(), Path::new("got")).expect("a destination");
    let error = unpack(endless, Path::new("got"), &to).expect_err("refused");
    assert!(format!("{error:#}").contains("headers of more than 65536 bytes"), "{error:#}");
}

#[test]
fn sparse_file_is_copied_with_its_holes() {
    let folder = tempfile::tempdir().expect("tempdir");
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o644);
    header.set_path("got/holes").expect("a path");
    header.set_size(0);
    let gnu = header.as_gnu_mut().expect("a GNU header");
    gnu.set_real_size(4096);
    gnu.sparse[0].set_offset(4096);
    gnu.sparse[0].set_length(0);
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, io::empty()).expect("appended");
    let to = Destination::open(folder.path(), Path::new("got")).expect("a destination");
    let left_out =
        unpack(&builder.into_inner().expect("a stream")[..], Path::new("got"), &to).expect("unpacked");
    assert_eq!(left_out.1, 0);
    assert_eq!(std::fs::read(folder.path().join("got/holes")).expect("read"), vec![0; 4096]);
}
