#![expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use hutch_snapshot::Images;
use serde_json::json;
use tempfile::TempDir;

use super::*;

const DATA: TreeName = TreeName::Volume(PathSegment::fixed("data"));
const SNAPSHOT: &str = "of the snapshot";

/// An image with a volume, and claims.
struct Scratch {
    folder: TempDir,
    image: Image,
    uids: &'static [&'static str],
}

impl Scratch {
    fn new(uids: &'static [&'static str]) -> Scratch {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        fs::create_dir_all(source.join("sub")).unwrap();
        fs::write(source.join("file"), SNAPSHOT).unwrap();
        fs::set_permissions(source.join("file"), fs::Permissions::from_mode(0o4750)).unwrap();
        std::os::unix::fs::symlink(folder.path().join("outside"), source.join("sub/link")).unwrap();
        fs::write(folder.path().join("outside"), "outside").unwrap();
        let images = Images::open(&folder.path().join("images")).unwrap();
        let mut partial = images.begin(&PathSegment::fixed("one")).unwrap();
        partial.copy_tree(&DATA, &source).unwrap();
        let image = partial.finish(json!({})).unwrap();
        Scratch { folder, image, uids }
    }

    /// Claims that have files, were filled before, and have what they held then.
    fn used(uids: &'static [&'static str]) -> Scratch {
        let scratch = Scratch::new(uids);
        for one in scratch.targets() {
            for (folder, text) in [(&one.path, "own"), (&one.before, "older")] {
                fs::create_dir_all(folder).unwrap();
                fs::write(folder.join("file"), text).unwrap();
            }
            fs::write(&one.record, "uid\n0").unwrap();
        }
        scratch
    }

    fn targets(&self) -> Vec<Target> {
        let volumes = self.volumes().join("default");
        self.uids.iter().map(|uid| Target::of(volumes.join(uid)).unwrap()).collect()
    }

    fn target(&self) -> Target {
        self.targets().remove(0)
    }

    fn volumes(&self) -> PathBuf {
        self.folder.path().join("volumes")
    }

    /// Stages all volumes.
    fn staged(&self, record: &str) -> Journal {
        let all = self.targets();
        all.iter().for_each(|one| one.stage((&self.image, &DATA), Some(1 << 20), record).unwrap());
        Journal::of(all).unwrap()
    }

    /// Starts a Pod in a new life of the node.
    fn start(&self) {
        self.start_again("");
    }

    fn start_again(&self, again: &str) {
        let unsettled = Unsettled::open(&self.volumes());
        let record = format!("uid\n{again}");
        let mut wanted = self.targets();
        wanted.retain(|one| one.wants(again, &record).unwrap());
        wanted.iter().for_each(|one| one.stage((&self.image, &DATA), None, &record).unwrap());
        Journal::of(wanted).map_or(Ok(()), |fill| fill.place(&unsettled)).unwrap();
        assert!(unsettled.claims().is_empty());
    }

    /// Content of the file of each volume, of what lies beside it, and the text of its record.
    fn state(&self) -> Vec<[String; 3]> {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let all = self.targets();
        all.iter()
            .map(|one| [read(one.path.join("file")), read(one.before.join("file")), read(one.record.clone())])
            .collect()
    }

    fn file(&self) -> String {
        fs::read_to_string(self.target().path.join("file")).unwrap()
    }

    /// Names beside the volume.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.target().parent).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }
}

#[test]
fn empty_volume_is_filled_exactly_and_once() {
    let scratch = Scratch::new(&["1-2"]);
    scratch.start();
    let volume = &scratch.target().path;
    assert_eq!(scratch.file(), SNAPSHOT);
    assert_eq!(volume.join("file").metadata().unwrap().permissions().mode() & 0o7777, 0o4750);
    let link = volume.join("sub/link");
    assert_eq!(fs::read_link(&link).unwrap(), scratch.folder.path().join("outside"));
    assert_eq!(scratch.names(), ["1-2", "1-2.filled"]);
    fs::write(volume.join("file"), "newer").unwrap();
    scratch.start();
    assert_eq!(scratch.file(), "newer");
    // Also if the Sandbox has emptied it.
    fs::remove_dir_all(volume).unwrap();
    fs::create_dir(volume).unwrap();
    scratch.start();
    assert_eq!(fs::read_dir(volume).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(scratch.folder.path().join("outside")).unwrap(), "outside");
}

#[test]
fn volume_with_files_is_filled_only_for_a_new_text_and_what_it_held_stays() {
    let scratch = Scratch::new(&["1-2"]);
    let Target { path: volume, before: kept, .. } = scratch.target();
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("file"), "own").unwrap();
    for again in ["", "1", "1", "", "2"] {
        let before = scratch.file();
        scratch.start_again(again);
        let is_new = again == "2" || (again == "1" && before == "own");
        assert_eq!(scratch.file(), if is_new { SNAPSHOT } else { before.as_str() }, "{again:?}");
        if is_new {
            assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), before);
            fs::write(volume.join("file"), format!("after {again}")).unwrap();
        }
    }
    assert_eq!(scratch.names(), ["1-2", "1-2.before", "1-2.filled"]);
    // What an empty volume has beside it stays too.
    fs::remove_dir_all(&volume).unwrap();
    scratch.start_again("3");
    assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "after 1");
    // It was decided when the Pod first began, also for a volume that is emptied later.
    let scratch = Scratch::new(&["1-2"]);
    fs::create_dir_all(scratch.target().path).unwrap();
    fs::write(scratch.target().path.join("file"), "own").unwrap();
    scratch.start();
    fs::remove_file(scratch.target().path.join("file")).unwrap();
    scratch.start();
    assert_eq!(fs::read_dir(scratch.target().path).unwrap().count(), 0);
}

#[test]
fn node_that_is_killed_before_a_fill_begins_leaves_the_volume_as_it_was() {
    let scratch = Scratch::new(&["1-2"]);
    let target = scratch.target();
    target.begin(1, None).unwrap();
    fs::write(target.filling.join("file"), "half").unwrap();
    fs::write(&target.new_record, "ui").unwrap();
    scratch.start();
    assert_eq!(scratch.file(), SNAPSHOT);
    assert_eq!(scratch.names(), ["1-2", "1-2.filled"]);
}

#[test]
fn node_that_is_killed_after_any_step_loses_nothing_that_a_volume_held() {
    const BOTH: &[&str] = &["1-2", "3-4"];
    let all = |state: [&str; 3]| vec![state.map(str::to_owned); 2];
    let steps = Scratch::used(BOTH).staged("").steps().count();
    let mut filled = 0;
    for stopped in 0..=steps {
        for in_undo in [false, true] {
            let scratch = Scratch::used(BOTH);
            let fill = scratch.staged("uid\n1");
            fill.steps().take(stopped).for_each(|step| fill.run(&step).unwrap());
            if in_undo && fill.open.exists() {
                // Killed for the second time.
                fill.all[0].undo().unwrap();
            }
            assert!(Unsettled::open(&scratch.volumes()).claims().is_empty(), "{stopped}");
            let mut state = scratch.state();
            let is_filled = state[0][0] == SNAPSHOT;
            filled += usize::from(is_filled);
            if !is_filled {
                // It may be gone by then.
                state.iter_mut().for_each(|[_, before, _]| before.clear());
            }
            let expected = if is_filled { [SNAPSHOT, "own", "uid\n1"] } else { ["own", "", "uid\n0"] };
            assert_eq!(state, all(expected), "{stopped}");
            assert!(scratch.names().iter().all(|name| !name.contains(".fill-") && !name.contains(".held")));
            scratch.start_again("1");
            assert_eq!(scratch.state(), all([SNAPSHOT, "own", "uid\n1"]), "{stopped}");
        }
    }
    assert!(filled > 2 && filled < 2 * steps, "{filled} of {steps}");
}

#[test]
fn fill_of_which_one_volume_fails_leaves_all_as_they_were() {
    let scratch = Scratch::used(&["1-2", "3-4"]);
    // In its way.
    let held = scratch.targets().remove(1).held;
    fs::create_dir(&held).unwrap();
    let unsettled = Unsettled::default();
    let error = scratch.staged("uid\n1").place(&unsettled).unwrap_err().to_string();
    assert!(error.contains("3-4"), "{error}");
    assert!(unsettled.claims().is_empty());
    for [file, _, record] in scratch.state() {
        assert_eq!((file.as_str(), record.as_str()), ("own", "uid\n0"));
    }
    assert!(!scratch.names().iter().any(|name| name.contains(".filling")), "{:?}", scratch.names());
    fs::remove_dir(&held).unwrap();
    scratch.start_again("1");
    for [file, before, record] in scratch.state() {
        assert_eq!([file.as_str(), &before, &record], [SNAPSHOT, "own", "uid\n1"]);
    }
}

#[test]
fn volume_whose_fill_cannot_be_undone_is_not_used() {
    let scratch = Scratch::used(&["1-2", "3-4"]);
    let fill = scratch.staged("uid\n1");
    fill.steps().take(5).for_each(|step| fill.run(&step).unwrap());
    let open = fill.open.clone();
    // A folder is not removed like a file.
    fs::remove_file(&open).unwrap();
    fs::create_dir(&open).unwrap();
    let unsettled = Unsettled::default();
    unsettled.all().push(fill);
    assert!(unsettled.settle("3-4").is_err());
    assert_eq!(unsettled.claims(), ["1-2", "3-4"]);
    unsettled.settle("5-6").unwrap();
    fs::remove_dir(&open).unwrap();
    fs::write(&open, "").unwrap();
    unsettled.settle("3-4").unwrap();
    assert!(unsettled.claims().is_empty());
    assert_eq!(scratch.file(), "own");
}

#[test]
fn fill_whose_record_cannot_be_written_keeps_what_the_volume_held() {
    let scratch = Scratch::used(&["1-2"]);
    let target = scratch.target();
    fs::create_dir(&target.new_record).unwrap();
    target.stage((&scratch.image, &DATA), None, "uid\n1").unwrap_err();
    assert_eq!(scratch.state(), [["own", "older", "uid\n0"].map(str::to_owned)]);
    scratch.start_again("1");
    assert_eq!(scratch.state(), [[SNAPSHOT, "own", "uid\n1"].map(str::to_owned)]);
}

#[test]
fn volume_that_is_too_small_or_whose_image_was_changed_stays_as_it_was() {
    let scratch = Scratch::new(&["1-2"]);
    let target = scratch.target();
    fs::create_dir_all(&target.path).unwrap();
    fs::write(target.path.join("file"), "old").unwrap();
    let refused = target.stage((&scratch.image, &DATA), Some(4), "").unwrap_err();
    assert!(refused.contains("requests 4: request more storage"), "{refused}");
    let absent = TreeName::Volume(PathSegment::fixed("other"));
    assert!(target.stage((&scratch.image, &absent), None, "").is_err());
    fs::write(scratch.folder.path().join("images/one/volumes/data/file"), "of an attacker").unwrap();
    let refused = target.stage((&scratch.image, &DATA), None, "").unwrap_err();
    assert!(refused.contains("has been changed"), "{refused}");
    assert_eq!(scratch.file(), "old");
    Unsettled::open(&scratch.volumes());
    assert_eq!(scratch.names(), ["1-2"]);
}
