//! Random work on a disk that may lose power or fill up at any moment: what was acknowledged is there afterwards,
//! and what was refused is not.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use redb::StorageBackend;

use crate::disk::builder;
use crate::{Error, Page, Store, Value};

#[derive(Debug)]
struct Text(Vec<u8>);

impl Value for Text {
    type Draft = String;
    fn seal(draft: String, revision: u64) -> Self {
        Text(format!("{revision}:{draft}").into_bytes())
    }
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn open(bytes: &[u8]) -> Result<Self, String> {
        Ok(Text(bytes.to_vec()))
    }
}

/// A disk that knows what it has promised to keep.
#[derive(Debug, Default)]
struct Platter {
    /// Content as readers of the running machine see it.
    now: Vec<u8>,
    /// Content after the last sync.
    kept: Vec<u8>,
    /// Writes since the last sync.
    loose: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug, Clone, Default)]
struct Drive {
    platter: Arc<Mutex<Platter>>,
    full: Arc<AtomicBool>,
}

impl Drive {
    /// The drive after a power cut: of the loose writes, those reach it that the bits say.
    fn after_power_cut(&self, survivors: u64) -> Drive {
        let platter = self.platter.lock().unwrap();
        let mut kept = platter.kept.clone();
        for (index, (offset, data)) in platter.loose.iter().enumerate() {
            if survivors >> (index % 64) & 1 == 1 {
                let end = offset + data.len();
                if kept.len() < end {
                    kept.resize(end, 0);
                }
                kept[*offset..end].copy_from_slice(data);
            }
        }
        let platter = Platter { now: kept.clone(), kept, loose: Vec::new() };
        Drive { platter: Arc::new(Mutex::new(platter)), full: Arc::default() }
    }

    fn store(&self) -> Result<Store<Text>, Error> {
        let drive = self.clone();
        Store::with_opener(Path::new("drive"), Box::new(move || builder().create_with_backend(drive.clone())))
    }

    fn refuse(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Drive {
    fn len(&self) -> io::Result<u64> {
        Ok(self.platter.lock().unwrap().now.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.platter.lock().unwrap();
        let from = offset as usize;
        let bytes = platter.now.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.refuse()?;
        let mut platter = self.platter.lock().unwrap();
        platter.now.resize(len as usize, 0);
        // The length is metadata of the file system, journalled in order.
        platter.kept.resize(len as usize, 0);
        platter.loose.retain(|(offset, data)| offset + data.len() <= len as usize);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        self.refuse()?;
        let mut platter = self.platter.lock().unwrap();
        platter.kept = platter.now.clone();
        platter.loose.clear();
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.refuse()?;
        let mut platter = self.platter.lock().unwrap();
        let from = offset as usize;
        platter.now[from..from + data.len()].copy_from_slice(data);
        platter.loose.push((from, data.to_vec()));
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Step {
    Create(u8, u16),
    Update(u8, u16),
    Delete(u8),
    /// The disk fills up or has room again.
    Full(bool),
    /// Power cut, then start again.
    Crash(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..12, any::<u16>()).prop_map(|(key, size)| Step::Create(key, size)),
        6 => (0u8..12, any::<u16>()).prop_map(|(key, size)| Step::Update(key, size)),
        3 => (0u8..12).prop_map(Step::Delete),
        1 => any::<bool>().prop_map(Step::Full),
        1 => any::<u64>().prop_map(Step::Crash),
    ]
}

type Model = BTreeMap<String, (u64, String)>;

fn check(store: &Store<Text>, model: &Model, revision: u64) {
    let list = store.list("things", Page::default());
    let found: Model = list
        .entries
        .iter()
        .map(|entry| {
            let text = String::from_utf8(entry.value.0.clone()).unwrap();
            let (_, text) = text.split_once(':').unwrap();
            (entry.name.to_string(), (entry.revision, text.to_owned()))
        })
        .collect();
    assert_eq!(&found, model);
    assert!(list.revision >= revision, "revisions continue: {} after {revision}", list.revision);
}

/// Does a step on the store and, if the store acknowledged it, on the model. Gives the revision acknowledged.
async fn act(store: &Store<Text>, model: &mut Model, step: &Step) -> Option<u64> {
    let (key, outcome) = match step {
        Step::Create(key, size) => {
            let (key, text) = (key.to_string(), "c".repeat(usize::from(*size) / 8));
            (key.clone(), store.create("things", &key, text.clone()).await.map(|entry| (entry, Some(text))))
        }
        Step::Update(key, size) => {
            let (key, text) = (key.to_string(), "u".repeat(usize::from(*size) / 8));
            let expected = model.get(&key).map_or(1, |(revision, _)| *revision);
            let done = store.update("things", &key, expected, text.clone()).await;
            (key, done.map(|entry| (entry, Some(text))))
        }
        Step::Delete(key) => {
            let key = key.to_string();
            let expected = model.get(&key).map_or(1, |(revision, _)| *revision);
            let done = store.delete("things", &key, expected, String::new()).await;
            (key, done.map(|entry| (entry, None)))
        }
        Step::Full(_) | Step::Crash(_) => return None,
    };
    match outcome {
        Ok((entry, Some(text))) => {
            model.insert(key, (entry.revision, text));
            Some(entry.revision)
        }
        Ok((entry, None)) => {
            model.remove(&key);
            Some(entry.revision)
        }
        Err(Error::Exists) => {
            assert!(model.contains_key(&key));
            None
        }
        Err(Error::NotFound) => {
            assert!(!model.contains_key(&key));
            None
        }
        Err(Error::DiskFull) => None,
        Err(other) => panic!("unexpected: {other}"),
    }
}

async fn live(steps: Vec<Step>) {
    let mut drive = Drive::default();
    let mut store = drive.store().unwrap();
    let mut model = Model::new();
    let mut revision = 0;
    for step in steps {
        match step {
            Step::Full(full) => drive.full.store(full, Ordering::SeqCst),
            Step::Crash(survivors) => {
                // The old store keeps using the old drive; none of its writes may reach the new one.
                drive = drive.after_power_cut(survivors);
                store = drive.store().unwrap();
            }
            _ => {
                if let Some(acknowledged) = act(&store, &mut model, &step).await {
                    assert!(acknowledged > revision);
                    revision = acknowledged;
                }
            }
        }
        check(&store, &model, revision);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn what_was_acknowledged_survives(steps in prop::collection::vec(step(), 1..60)) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(live(steps));
    }
}

#[test]
fn full_disk_fails_writes_until_space_is_free() {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let drive = Drive::default();
        let store = drive.store().unwrap();
        let first = store.create("things", "a", "one".into()).await.unwrap();
        drive.full.store(true, Ordering::SeqCst);
        let refused = store.create("things", "b", "two".into()).await;
        assert!(matches!(refused, Err(Error::DiskFull)), "{refused:?}");
        assert!(store.get("things", "b").is_none());
        assert_eq!(store.current_revision(), first.revision);
        drive.full.store(false, Ordering::SeqCst);
        store.create("things", "b", "two".into()).await.unwrap();
        let again = drive.after_power_cut(0).store().unwrap();
        assert!(again.get("things", "b").is_some());
    });
}

#[test]
fn who_runs_ahead_sees_at_once_and_others_when_it_is_on_disk() {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let drive = Drive::default();
        let store = drive.store().unwrap();
        let ahead = store.ahead();
        let entry = {
            let _stalled = drive.platter.lock().unwrap();
            let mut create = std::pin::pin!(ahead.create("things", "a", "one".into()));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let std::task::Poll::Ready(created) = create.as_mut().poll(&mut context) else {
                panic!("it waits for the disk");
            };
            assert!(ahead.get("things", "a").is_some() && store.latest("things", "a").is_some());
            assert!(store.get("things", "a").is_none(), "nothing is on disk while the disk is stalled");
            created.unwrap()
        };
        assert!(store.settled("things", &entry).await);
        assert!(store.get("things", "a").is_some());
        assert!(drive.after_power_cut(0).store().unwrap().get("things", "a").is_some());
    });
}

#[test]
fn what_the_disk_refuses_is_taken_back_from_those_ahead_and_never_shown_to_others() {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let drive = Drive::default();
        let store = drive.store().unwrap();
        let ahead = store.ahead();
        let first = store.create("things", "a", "one".into()).await.unwrap();
        let mut outside = store.watch("things", "", first.revision).unwrap();
        let mut inside = ahead.watch("things", "", first.revision).unwrap();
        drive.full.store(true, Ordering::SeqCst);
        let lost = ahead.update("things", "a", first.revision, "two".into()).await.unwrap();
        assert!(!store.settled("things", &lost).await);
        loop {
            match inside.next().await {
                Ok(event) => assert_eq!(event.revision(), lost.revision),
                Err(Error::Compacted { .. }) => break,
                Err(other) => panic!("unexpected: {other}"),
            }
        }
        assert_eq!(ahead.get("things", "a").unwrap().revision, first.revision);
        drive.full.store(false, Ordering::SeqCst);
        let second = ahead.update("things", "a", first.revision, "three".into()).await.unwrap();
        assert!(second.revision > lost.revision, "a revision is given out once");
        let seen = outside.next().await.unwrap();
        assert_eq!(seen.revision(), second.revision);
    });
}
