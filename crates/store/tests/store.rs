//! The store as its users see it.

use std::time::Duration;

use hutch_store::{Error, Event, Page, Store, Value, WINDOW_EVENTS};

#[derive(Debug)]
struct Text(String);

impl Value for Text {
    type Draft = String;
    fn seal(draft: String, revision: u64) -> Self {
        Text(format!("{draft}@{revision}"))
    }
    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
    fn open(bytes: &[u8]) -> Result<Self, String> {
        String::from_utf8(bytes.to_vec()).map(Text).map_err(|error| error.to_string())
    }
}

#[tokio::test]
async fn compare_and_swap() {
    let store = Store::<Text>::volatile().unwrap();
    let first = store.create("pods", "default/a", "one".into()).await.unwrap();
    assert_eq!((first.revision, first.created, first.value.0.as_str()), (1, 1, "one@1"));
    assert!(matches!(store.create("pods", "default/a", "x".into()).await, Err(Error::Exists)));
    let second = store.update("pods", "default/a", 1, "two".into()).await.unwrap();
    assert_eq!((second.revision, second.created), (2, 1));
    let late = store.update("pods", "default/a", 1, "x".into()).await;
    assert!(matches!(late, Err(Error::Conflict { current: 2 })), "{late:?}");
    let late = store.delete("pods", "default/a", 1, "x".into()).await;
    assert!(matches!(late, Err(Error::Conflict { current: 2 })), "{late:?}");
    let last = store.delete("pods", "default/a", 2, "gone".into()).await.unwrap();
    assert_eq!((last.revision, last.value.0.as_str()), (3, "gone@3"));
    assert!(store.get("pods", "default/a").is_none());
    assert!(matches!(store.update("pods", "default/a", 3, "x".into()).await, Err(Error::NotFound)));
}

#[tokio::test]
async fn of_many_writers_of_one_revision_one_wins() {
    let store = Store::<Text>::volatile().unwrap();
    store.create("pods", "a", "0".into()).await.unwrap();
    let writers = (0..64).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { store.update("pods", "a", 1, n.to_string()).await.is_ok() })
    });
    let mut won = 0;
    for writer in writers.collect::<Vec<_>>() {
        won += usize::from(writer.await.unwrap());
    }
    assert_eq!(won, 1);
}

#[tokio::test]
async fn lists_are_in_order_and_in_pages() {
    let store = Store::<Text>::volatile().unwrap();
    for name in ["b/2", "a/1", "b/1", "b/3", "c/1"] {
        store.create("pods", name, name.into()).await.unwrap();
    }
    store.create("services", "b/9", String::new()).await.unwrap();
    let page = store.list("pods", Page { prefix: "b/", after: None, limit: Some(2) });
    let names: Vec<_> = page.entries.iter().map(|entry| &*entry.name).collect();
    assert_eq!((names, page.remaining, page.revision), (vec!["b/1", "b/2"], 1, 6));
    let page = store.list("pods", Page { prefix: "b/", after: Some("b/2"), limit: Some(2) });
    let names: Vec<_> = page.entries.iter().map(|entry| &*entry.name).collect();
    assert_eq!((names, page.remaining), (vec!["b/3"], 0));
    assert_eq!(store.count("pods", ""), 5);
}

#[tokio::test]
async fn list_at_a_revision_shows_the_state_of_then() {
    let store = Store::<Text>::volatile().unwrap();
    for name in ["a", "b", "c", "d"] {
        store.create("pods", name, name.into()).await.unwrap();
    }
    let then = store.current_revision();
    store.delete("pods", "b", 2, "gone".into()).await.unwrap();
    let changed = store.update("pods", "c", 3, "new".into()).await.unwrap();
    store.update("pods", "c", changed.revision, "newer".into()).await.unwrap();
    store.create("pods", "b", "again".into()).await.unwrap();
    store.create("pods", "bb", "other".into()).await.unwrap();
    let page = |after, limit| Page { prefix: "", after, limit };
    let texts =
        |list: hutch_store::List<Text>| list.entries.iter().map(|e| e.value.0.clone()).collect::<Vec<_>>();
    let all = store.list_at("pods", page(None, None), then).unwrap();
    assert_eq!((texts(all), then), (["a@1", "b@2", "c@3", "d@4"].map(Into::into).into(), 4));
    let part = store.list_at("pods", page(Some("a"), Some(2)), then).unwrap();
    assert_eq!((part.remaining, part.revision), (1, then));
    assert_eq!(texts(part), ["b@2", "c@3"]);
    store.compact(then + 1);
    let late = store.list_at("pods", page(None, None), then).err();
    assert!(matches!(late, Some(Error::Compacted { asked: 4, oldest: 5 })), "{late:?}");
}

#[tokio::test]
async fn a_watch_sees_every_change_after_its_revision_and_only_of_its_prefix() {
    let store = Store::<Text>::volatile().unwrap();
    store.create("pods", "a/1", "1".into()).await.unwrap();
    store.update("pods", "a/1", 1, "2".into()).await.unwrap();
    store.create("pods", "b/1", "3".into()).await.unwrap();
    let mut watch = store.watch("pods", "a/", 1).unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Updated { now, .. } if now.revision == 2));
    let waiting = tokio::spawn(async move { watch.next().await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    store.delete("pods", "a/1", 2, "last".into()).await.unwrap();
    let event = waiting.await.unwrap().unwrap();
    assert!(matches!(event, Event::Deleted { before, last } if before.revision == 2 && last.revision == 4));
}

#[tokio::test]
async fn slow_watch_returns_compacted() {
    let store = Store::<Text>::volatile().unwrap();
    let mut slow = store.watch("pods", "", 0).unwrap();
    let mut quiet = store.watch("services", "", 0).unwrap();
    let writes = (0..WINDOW_EVENTS + 1).map(|n| {
        let store = store.clone();
        async move { store.create("pods", &n.to_string(), String::new()).await.unwrap() }
    });
    for chunk in writes.collect::<Vec<_>>().into_iter() {
        chunk.await;
    }
    assert!(matches!(slow.next().await, Err(Error::Compacted { asked: 0, oldest: 1 })));
    assert!(matches!(store.watch("pods", "", 0), Err(Error::Compacted { .. })));
    store.create("services", "s", String::new()).await.unwrap();
    assert!(matches!(quiet.next().await, Ok(Event::Created(_))));
    store.compact(store.current_revision());
    assert!(matches!(store.watch("services", "", 0), Err(Error::Compacted { .. })));
}

#[tokio::test]
async fn restart_keeps_values_and_continues_revisions() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::<Text>::open(folder.path()).unwrap();
    store.create("pods", "a", "one".into()).await.unwrap();
    store.create("pods", "b", "two".into()).await.unwrap();
    store.delete("pods", "a", 1, String::new()).await.unwrap();
    assert!(matches!(Store::<Text>::open(folder.path()), Err(Error::Locked(_))));
    store.close().await;
    assert!(matches!(store.create("pods", "c", String::new()).await, Err(Error::Closed)));

    let store = Store::<Text>::open(folder.path()).unwrap();
    assert_eq!(store.current_revision(), 3);
    let entry = store.get("pods", "b").unwrap();
    assert_eq!((entry.revision, entry.created, entry.value.0.as_str()), (2, 2, "two@2"));
    assert!(store.get("pods", "a").is_none());
    assert!(matches!(store.watch("pods", "", 2), Err(Error::Compacted { asked: 2, oldest: 3 })));
    let next = store.create("pods", "a", "three".into()).await.unwrap();
    assert_eq!(next.revision, 4);
}

#[tokio::test]
async fn a_file_that_is_not_ours_or_newer_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.redb");
    std::fs::write(&file, vec![7u8; 8192]).unwrap();
    let Err(error) = Store::<Text>::open(folder.path()) else { panic!("opened nonsense") };
    assert!(error.to_string().contains("objects.redb"), "{error}");
    std::fs::remove_file(&file).unwrap();

    let database = redb::Database::create(&file).unwrap();
    let write = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    write.open_table(meta).unwrap().insert("format", hutch_store::FORMAT + 1).unwrap();
    write.commit().unwrap();
    drop(database);
    let Err(error) = Store::<Text>::open(folder.path()) else { panic!("opened a newer file") };
    assert!(matches!(error, Error::Newer { found: 2, known: 1, .. }), "{error}");
}

#[tokio::test]
async fn change_of_a_collection_is_seen_by_its_revision_after_a_restart_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::<Text>::open(folder.path()).unwrap();
    assert_eq!(store.changed(&["roles", "bindings"]), 0);
    store.create("roles", "a", "1".into()).await.unwrap();
    store.create("pods", "a", "1".into()).await.unwrap();
    assert_eq!((store.changed(&["roles", "bindings"]), store.changed(&["pods"])), (1, 2));
    store.delete("roles", "a", 1, "gone".into()).await.unwrap();
    assert_eq!((store.changed(&["roles", "bindings"]), store.ahead().changed(&["roles"])), (3, 3));
    store.create("bindings", "b", "1".into()).await.unwrap();
    assert_eq!(store.changed(&["roles", "bindings"]), 4);
    store.close().await;
    drop(store);
    let store = Store::<Text>::open(folder.path()).unwrap();
    assert_eq!((store.changed(&["bindings"]), store.ahead().changed(&["bindings"])), (4, 4));
}
