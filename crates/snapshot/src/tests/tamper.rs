//! Images that were changed after they were made.

use super::*;

/// Everything of an image is read; `true` if anything was refused.
fn refused(scratch: &Scratch) -> Option<String> {
    let read = || -> Result<(), Error> {
        let Some(image) = scratch.images.find(&ID)? else { return Ok(()) };
        image.memory(&MAIN)?;
        for name in [&UPPER, &DATA] {
            let target = scratch.path("target");
            let copied = image.copy_out(name, &target);
            assert_eq!(target.exists(), copied.is_ok(), "a copy that is refused does not stay");
            copied?;
            fs::remove_dir_all(target).unwrap();
        }
        Ok(())
    };
    read().err().map(|error| error.to_string())
}

fn change(path: &Path, at: usize, bit: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= bit;
    fs::write(path, bytes).unwrap();
}

#[test]
fn each_flipped_bit_of_the_manifest_is_refused() {
    let scratch = Scratch::new();
    scratch.image(&ID);
    let file = scratch.stored("one/manifest.json");
    let bytes = fs::read(&file).unwrap();
    let key = &scratch.images.store.key;
    assert!(crate::manifest::read(key, &ID, &bytes).is_ok());
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert!(crate::manifest::read(key, &ID, &changed).is_err(), "byte {at}, bit {bit}");
        }
        if at % 50 == 0 {
            change(&file, at, 1);
            assert!(scratch.images.find(&ID).is_err(), "byte {at}");
            change(&file, at, 1);
        }
    }
    assert_eq!(refused(&scratch), None);
}

#[test]
fn each_shorter_and_longer_manifest_is_refused() {
    let scratch = Scratch::new();
    scratch.image(&ID);
    let file = scratch.stored("one/manifest.json");
    let bytes = fs::read(&file).unwrap();
    for length in 0..bytes.len() {
        let read = crate::manifest::read(&scratch.images.store.key, &ID, &bytes[..length]);
        assert!(matches!(read, Err(Error::Truncated { .. })), "{length} bytes");
    }
    for length in [0, 100, bytes.len() - 1] {
        fs::write(&file, &bytes[..length]).unwrap();
        assert!(matches!(scratch.images.find(&ID), Err(Error::Truncated { .. })), "{length} bytes");
    }
    for more in [b" ".as_slice(), b"\n", b"}\n", &vec![b'x'; 5 << 20]] {
        fs::write(&file, [&bytes, more].concat()).unwrap();
        assert!(scratch.images.find(&ID).is_err());
    }
    fs::remove_file(&file).unwrap();
    assert!(matches!(scratch.images.find(&ID), Err(Error::Truncated { .. })));
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    assert!(matches!(scratch.images.find(&ID), Err(Error::Tampered { .. })));
}

#[test]
fn a_flipped_bit_in_any_file_is_refused() {
    let scratch = Scratch::new();
    scratch.image(&ID);
    for name in
        ["memory/main/checkpoint.img", "memory/main/pages.img", "uppers/main/file", "volumes/data/sub/other"]
    {
        let file = scratch.stored("one").join(name);
        let about = file.metadata().unwrap();
        let length = usize::try_from(about.len()).unwrap();
        let samples = [0, 1, length / 3, length / 2, 4095, 4096, length - 1];
        for at in samples.into_iter().filter(|at| *at < length) {
            for bit in [1, 0x80] {
                change(&file, at, bit);
                set_mtime(&file, &about);
                assert!(refused(&scratch).unwrap().contains("has been changed"), "{name}: byte {at}");
                change(&file, at, bit);
                set_mtime(&file, &about);
            }
        }
        assert_eq!(refused(&scratch), None, "{name}");
    }
}

fn set_mtime(file: &Path, about: &fs::Metadata) {
    fs::File::options().write(true).open(file).unwrap().set_modified(about.modified().unwrap()).unwrap();
}

#[test]
fn files_that_are_shorter_absent_or_added_are_refused() {
    type Change = fn(&Path);
    let shorten = |file: &Path| {
        fs::File::options().write(true).open(file).unwrap().set_len(5).unwrap();
    };
    let changes: [(&str, &str, Change); 15] = [
        ("memory/main/pages.img", "is incomplete: pages.img has 5 bytes", shorten),
        ("memory/main/pages_meta.img", "pages_meta.img is absent", |file| fs::remove_file(file).unwrap()),
        ("memory/main/more.img", "\"more.img\" was added", |file| fs::write(file, b"").unwrap()),
        ("memory/main/checkpoint.img", "another name elsewhere", |file| {
            fs::hard_link(file, file.ancestors().nth(5).unwrap().join("again")).unwrap();
        }),
        ("memory/main", "memory/main is absent", |folder| fs::remove_dir_all(folder).unwrap()),
        ("memory/other", "\"memory/other\" was added", |folder| fs::create_dir(folder).unwrap()),
        ("volumes/other", "\"volumes/other\" was added", |folder| fs::create_dir(folder).unwrap()),
        ("uppers/main", "uppers/main is absent", |folder| fs::remove_dir_all(folder).unwrap()),
        ("more", "\"./more\" was added", |file| fs::write(file, b"").unwrap()),
        ("uppers/main/file", "a socket was added", |file| {
            // In place of another entry, so that their number is the same.
            fs::remove_file(file).unwrap();
            std::os::unix::net::UnixListener::bind(file).unwrap();
        }),
        ("uppers/main/more", "has been changed", |file| fs::write(file, b"").unwrap()),
        ("uppers/main/socket", "has too many entries", |file| {
            std::os::unix::net::UnixListener::bind(file).unwrap();
        }),
        ("uppers/main/sub/link", "has been changed", |file| fs::remove_file(file).unwrap()),
        ("volumes/data/sub/same", "has been changed", |file| {
            // The same content and attributes, and a file of its own.
            let copy = file.with_file_name("copy");
            hutch_testkit::disk::run(std::process::Command::new("cp").arg("-p").args([file, &*copy]));
            fs::rename(copy, file).unwrap();
        }),
        ("uppers/main/sub", "has been changed", |folder| {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711)).unwrap();
        }),
    ];
    for (name, expected, change) in changes {
        let scratch = Scratch::new();
        scratch.image(&ID);
        let file = scratch.stored("one").join(name);
        change(&file);
        let error = refused(&scratch).expect(name);
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn parts_that_are_links_or_other_files_are_refused() {
    for name in ["one", "one/memory", "one/memory/main", "one/uppers/main", "one/volumes"] {
        let scratch = Scratch::new();
        scratch.image(&ID);
        let (part, aside) = (scratch.stored(name), scratch.path("aside"));
        fs::rename(&part, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &part).unwrap();
        let error = refused(&scratch).expect(name);
        assert!(error.contains("is not a folder"), "{name}: {error}");
    }
    let scratch = Scratch::new();
    scratch.image(&ID);
    let file = scratch.stored("one/memory/main/pages.img");
    fs::rename(&file, scratch.path("aside")).unwrap();
    std::os::unix::fs::symlink(scratch.path("aside"), &file).unwrap();
    assert!(refused(&scratch).unwrap().contains("\"pages.img\" is not a regular file"));
    fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RUSR).unwrap();
    assert!(refused(&scratch).unwrap().contains("\"pages.img\" is not a regular file"));
}

#[test]
fn an_image_under_another_id_is_refused() {
    let scratch = Scratch::new();
    scratch.image(&ID);
    let two = PathSegment::fixed("two");
    scratch.images.begin(&two).unwrap().finish(json!(null)).unwrap();
    fs::rename(scratch.stored("one"), scratch.stored("three")).unwrap();
    fs::rename(scratch.stored("two"), scratch.stored("one")).unwrap();
    fs::rename(scratch.stored("three"), scratch.stored("two")).unwrap();
    for (id, named) in [("one", "two"), ("two", "one")] {
        let error = scratch.images.find(&PathSegment::fixed(id)).unwrap_err().to_string();
        let expected = format!("snapshot image {id} is swapped: its manifest is the one of image {named}");
        assert_eq!(error, expected);
    }
}

#[test]
fn trees_and_memory_of_other_names_are_refused() {
    let scratch = Scratch::new();
    let mut partial = scratch.images.begin(&ID).unwrap();
    let folder = scratch.small_tree("upper");
    partial.copy_tree(&UPPER, &folder).unwrap();
    fs::write(folder.join("file"), b"others").unwrap();
    partial.copy_tree(&DATA, &folder).unwrap();
    let image = partial.finish(json!(null)).unwrap();
    let (upper, data) = (scratch.stored("one/uppers/main"), scratch.stored("one/volumes/data"));
    fs::rename(&upper, scratch.path("aside")).unwrap();
    fs::rename(&data, &upper).unwrap();
    fs::rename(scratch.path("aside"), &data).unwrap();
    for name in [&UPPER, &DATA] {
        let error = image.copy_out(name, &scratch.path("target")).unwrap_err();
        assert!(matches!(error, Error::Tampered { .. }), "{error}");
    }
}

#[test]
fn an_image_of_another_key_is_foreign() {
    let scratch = Scratch::new();
    scratch.image(&ID);
    fs::remove_file(scratch.stored("key")).unwrap();
    let error = Images::open(&scratch.path("images")).unwrap_err().to_string();
    assert!(error.contains("the key of the images in its folder is absent"), "{error}");
    fs::copy(Scratch::new().stored("key"), scratch.stored("key")).unwrap();
    let error = scratch.reopen().find(&ID).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
}

#[test]
fn another_format_is_refused_by_its_number() {
    let scratch = Scratch::new();
    scratch.image(&ID);
    for (body, expected) in [
        (r#"{"format":2,"new":[]}"#, "its manifest has format 2, and this version reads format 1"),
        (r#"{"format":0}"#, "its manifest has format 0, and this version reads format 1"),
        (r#"{"format":1}"#, "cannot be read: missing field `id`"),
        (r#"{"id":"one"}"#, "cannot be read: missing field `format`"),
        ("", "cannot be read"),
        (
            r#"{"format":1,"id":"one","memory":{},"uppers":{},"volumes":{},"facts":1,"more":1}"#,
            "unknown field `more`",
        ),
        (
            r#"{"format":1,"id":"one","memory":{"..":{}},"uppers":{},"volumes":{},"facts":1}"#,
            "a name in it is not one component of a path",
        ),
    ] {
        let sealed = crate::manifest::seal(&scratch.images.store.key, body.as_bytes());
        fs::write(scratch.stored("one/manifest.json"), sealed).unwrap();
        let error = scratch.images.find(&ID).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
