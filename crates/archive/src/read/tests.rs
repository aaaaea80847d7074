use tar::{Builder, Header};

use super::*;

const LIMITS: Limits =
    Limits { entries: 10, header_bytes: 64 << 10, content_bytes: 1 << 20, absolute: AbsolutePaths::Refused };

/// Entry whose path and link are written as they are, which the library would not do.
fn header(kind: EntryType, path: &str, link: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(7);
    header.set_gid(8);
    header.set_size(size);
    let fields = header.as_old_mut();
    fields.name[..path.len()].copy_from_slice(path.as_bytes());
    fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    header
}

fn archive(entries: &[(EntryType, &str, &str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, link, content) in entries {
        builder.append(&header(*kind, path, link, content.len() as u64), *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn read_all(from: &[u8]) -> Result<Vec<(String, Kind, Vec<u8>)>, ReadError> {
    let mut found = Vec::new();
    read(from, LIMITS, |entry| {
        let mut content = Vec::new();
        entry.content(|piece| {
            content.extend_from_slice(piece);
            Ok::<_, ReadError>(())
        })?;
        found.push((entry.path().display().to_string(), entry.kind(), content));
        Ok::<_, ReadError>(())
    })?;
    Ok(found)
}

#[test]
fn each_kind_has_its_path_and_content() {
    let archive = archive(&[
        (EntryType::Directory, "./d/", "", b""),
        (EntryType::Regular, "d/file", "", &[7; 70_000]),
        (EntryType::Continuous, "d/next", "", b"x"),
        (EntryType::Symlink, "link", "../any", b""),
        (EntryType::Link, "hard", "./d/file", b""),
        (EntryType::XGlobalHeader, "none", "", b"any"),
        (EntryType::Block, "block", "", b""),
        (EntryType::Fifo, "pipe", "", b""),
    ]);
    let found = read_all(&archive).unwrap();
    let kinds: Vec<_> = found.iter().map(|(path, kind, _)| (path.as_str(), *kind)).collect();
    let expected = [
        ("d", Kind::Folder),
        ("d/file", Kind::File),
        ("d/next", Kind::File),
        ("link", Kind::Symlink),
        ("hard", Kind::HardLink),
        ("block", Kind::Special),
        ("pipe", Kind::Special),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(found[1].2, [7; 70_000]);
    let mut links = Vec::new();
    read(&archive[..], LIMITS, |entry| {
        assert_eq!((entry.mode()?, entry.owner()?), (0o644, (7, 8)));
        match entry.kind() {
            Kind::Symlink => links.push(entry.target()?),
            Kind::HardLink => links.push(entry.linked()?),
            _ => assert!(entry.target().is_err() && entry.linked().is_err()),
        }
        Ok::<_, ReadError>(())
    })
    .unwrap();
    assert_eq!(links, [Path::new("../any"), Path::new("d/file")]);
}

#[test]
fn paths_and_links_of_any_length_come_from_gnu_and_pax_headers() {
    let path = format!("{}/{}", "d".repeat(150), "n".repeat(200));
    let target = "t".repeat(300);
    let mut builder = Builder::new(Vec::new());
    let mut link = header(EntryType::Symlink, "", "", 0);
    builder.append_link(&mut link, &path, &target).unwrap();
    let pax = [("path", path.as_bytes()), ("linkpath", target.as_bytes()), ("uid", b"3000000")];
    builder.append_pax_extensions(pax).unwrap();
    builder.append(&header(EntryType::Symlink, "short", "short", 0), io::empty()).unwrap();
    let mut count = 0;
    read(&builder.into_inner().unwrap()[..], LIMITS, |entry| {
        assert_eq!((entry.path(), entry.target()?), (Path::new(&path), PathBuf::from(&target)));
        assert_eq!(entry.owner()?.0, [7, 3_000_000][count]);
        count += 1;
        Ok::<_, ReadError>(())
    })
    .unwrap();
    assert_eq!(count, 2);
}

#[test]
fn headers_above_the_limit_are_refused_early() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let size = 10 << 20;
        let header = header(kind, "", "", size);
        let mut sent = io::Cursor::new(header.as_bytes().to_vec()).chain(io::repeat(b'n').take(size));
        let error = read(&mut sent, LIMITS, |_| Ok::<_, ReadError>(())).map(drop).unwrap_err();
        let expected = "the tar stream cannot be read: headers of more than 65536 bytes before one entry";
        assert_eq!(error.to_string(), expected, "{kind:?}");
        let left = io::copy(&mut sent, &mut io::sink()).unwrap();
        assert!(left > 9 << 20, "{kind:?}: {left} bytes are left");
    }
}

#[test]
fn pax_headers_that_the_library_does_not_know_are_not_held_in_memory() {
    // Global headers, and a PAX header in the format before ustar, are entries of their own.
    let global = header(EntryType::XGlobalHeader, "", "", 1 << 40);
    let mut old = Header::new_old();
    old.set_entry_type(EntryType::XHeader);
    old.set_size(8 << 30);
    old.set_cksum();
    for (header, entries) in [(global, 0), (old, 1)] {
        let mut count = 0;
        let sent = header.as_bytes().chain(io::repeat(b'n').take(3 << 20));
        let error = read(sent, LIMITS, |entry| {
            assert_eq!(entry.kind(), Kind::Special);
            count += 1;
            Err::<(), _>(entry.malformed("seen"))
        });
        assert!(error.is_err(), "{kind:?}: more than the limit of headers", kind = header.entry_type());
        assert_eq!(count, entries);
    }
}

#[test]
fn headers_of_the_whole_archive_count_as_entries() {
    let mut entries = vec![(EntryType::XGlobalHeader, "", "", &b"any"[..]); 9];
    entries.push((EntryType::Regular, "file", "", b"x"));
    assert_eq!(read_all(&archive(&entries)).unwrap().len(), 1);
    entries.insert(0, (EntryType::XGlobalHeader, "", "", b"any"));
    assert!(matches!(read_all(&archive(&entries)), Err(ReadError::Entries(10))));
}

#[test]
fn malformed_entries_are_refused() {
    let refused =
        |entries: &[(EntryType, &str, &str, &[u8])]| read_all(&archive(entries)).unwrap_err().to_string();
    let file = (EntryType::Regular, "file", "", &b""[..]);
    assert!(refused(&[(EntryType::Regular, "../up", "", b"")]).contains("leads upwards"));
    assert!(refused(&[(EntryType::Regular, "/top", "", b"")]).contains("is absolute"));
    assert!(refused(&[(EntryType::XHeader, "", "", b"none\n"), file]).contains("cannot be read"));
    assert!(refused(&[(EntryType::XHeader, "", "", b"10 path=p\n")]).contains("cannot be read"));
    assert!(refused(&[(EntryType::XHeader, "", "", b"13 path=p/..\n"), file]).contains("leads upwards"));
    let links = archive(&[(EntryType::Symlink, "a", "", b""), (EntryType::Link, "b", "../c", b"")]);
    let mut problems = Vec::new();
    read(&links[..], LIMITS, |entry| {
        let problem = if entry.kind() == Kind::Symlink { entry.target() } else { entry.linked() };
        problems.push(problem.unwrap_err().to_string());
        Ok::<_, ReadError>(())
    })
    .unwrap();
    assert!(problems[0].contains("is not a path") && problems[1].contains("leads upwards"), "{problems:?}");
}

#[test]
fn size_of_a_pax_header_replaces_that_of_the_entry() {
    let mut builder = Builder::new(Vec::new());
    builder.append_pax_extensions([("size", &b"3"[..])]).unwrap();
    builder.append(&header(EntryType::Regular, "file", "", 0), &b"abc"[..]).unwrap();
    builder.append(&header(EntryType::Regular, "next", "", 1), &b"d"[..]).unwrap();
    let found = read_all(&builder.into_inner().unwrap()).unwrap();
    assert_eq!(found[0].2, b"abc");
    assert_eq!(found[1].0, "next");
}

/// Entry without data whose content is a hole.
fn hole(path: &str, size: u64) -> Header {
    let mut header = header(EntryType::GNUSparse, path, "", 0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_real_size(size);
    gnu.sparse[0].set_offset(size);
    gnu.sparse[0].set_length(0);
    header.set_cksum();
    header
}

#[test]
fn content_of_all_entries_counts_together_with_holes() {
    let archive = |sizes: &[u64]| {
        let mut builder = Builder::new(Vec::new());
        for size in sizes {
            builder.append(&hole("hole", *size), io::empty()).unwrap();
        }
        builder.into_inner().unwrap()
    };
    let found = read_all(&archive(&[1 << 19, 1 << 19])).unwrap();
    assert!(found.iter().all(|(_, kind, content)| *kind == Kind::SparseFile && content == &vec![0; 1 << 19]));
    for sizes in [&[1 << 20, 1][..], &[7 << 30]] {
        let error = read_all(&archive(sizes)).unwrap_err();
        assert_eq!(error.to_string(), "the files of the tar stream have more than 1048576 bytes");
    }
}

#[test]
fn archives_that_break_off_are_refused() {
    let whole = archive(&[(EntryType::Regular, "file", "", &[b'a'; 5000])]);
    for cut in [100, 511, 513, 600, 5511] {
        assert!(matches!(read_all(&whole[..cut]), Err(ReadError::Stream(_))), "cut at {cut}");
    }
    assert_eq!(read_all(&whole[..5632]).unwrap().len(), 1, "without the end marker");
}

#[test]
fn the_reader_is_returned_after_the_end_marker() {
    let mut archive = archive(&[(EntryType::Regular, "file", "", b"content")]);
    archive.extend_from_slice(b"rest");
    let mut rest = read(&archive[..], LIMITS, |_| Ok::<_, ReadError>(())).unwrap();
    let mut text = Vec::new();
    rest.read_to_end(&mut text).unwrap();
    assert!(text.ends_with(b"rest") && text.len() < 1024, "{} bytes", text.len());
}

proptest::proptest! {
    #[test]
    fn any_input_is_read_or_refused(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..2000)) {
        let _ = read_all(&bytes);
    }
}

#[test]
fn owner_that_means_unchanged_is_refused() {
    for (uid, gid, good) in
        [(u32::MAX - 1, 0, true), (u32::MAX, 0, false), (0, u32::MAX, false), (0, u32::MAX - 1, true)]
    {
        let mut header = header(EntryType::Regular, "file", "", 0);
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        builder.append(&header, &[][..]).unwrap();
        let archive = builder.into_inner().unwrap();
        let owner = read(&*archive, LIMITS, |entry| entry.owner().map(drop));
        assert_eq!(owner.is_ok(), good, "{uid} {gid}");
    }
}
