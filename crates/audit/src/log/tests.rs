use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::disk::{Failure, Operation};
use crate::event::{Connection, ConnectionActivity, Decision, Event, Sandbox, Verdict};
use crate::folder::HEAD;
use crate::head::{PUBLIC, PublicKey};
use crate::read::{Entry, Reader};
use crate::retention::Retention;
use crate::verify::{Report, verify};
use crate::view::View;
use crate::{Cursor, segments};

fn record(host: &str) -> Record {
    let connection = Connection {
        sandbox: Sandbox { namespace: "team", name: "box", uid: None },
        activity: ConnectionActivity::Open,
        host,
        address: None,
        port: Some(443),
        traffic: None,
        count: None,
        verdict: Verdict::of(Decision::Allowed),
    };
    Event::connection(SystemTime::now(), &connection).record()
}

/// Options of a log with small segments, so that a test has several.
fn small() -> Options {
    Options { segment: 3000, group: Duration::ZERO, ..Options::default() }
}

fn entries(folder: &Path) -> Vec<Entry> {
    let mut reader = Reader::new(folder, 1);
    std::iter::from_fn(|| reader.read().unwrap()).collect()
}

/// Hosts of the connections in a log, and the messages of its own records.
fn content(folder: &Path) -> Vec<String> {
    entries(folder).iter().map(|entry| View::parse(entry.event()).subject()).collect()
}

fn faults(folder: &Path) -> Vec<String> {
    verify(folder, None, None).unwrap().faults.iter().map(ToString::to_string).collect()
}

fn intact(folder: &Path) -> Report {
    let report = verify(folder, None, None).unwrap();
    assert_eq!(report.faults, [], "{report:?}");
    report
}

/// A closed log with this many connections.
async fn written(count: usize, options: Options) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path(), options).unwrap();
    for index in 0..count {
        log.record_durably(record(&format!("h{index}.example"))).await.unwrap();
    }
    log.close();
    folder
}

fn copy(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

#[tokio::test]
async fn log_of_several_segments_verifies_and_continues() {
    let folder = written(20, small()).await;
    let report = intact(folder.path());
    assert!(report.segments > 3 && report.first == 1 && report.signed == report.last, "{report:?}");
    let before = report.last;
    let log = Log::open(folder.path(), small()).unwrap();
    assert!(matches!(Log::open(folder.path(), small()), Err(Error::Locked(_))));
    log.record(record("again.example")).await.unwrap();
    drop(log);
    assert!(intact(folder.path()).last > before);
    let content = content(folder.path());
    assert_eq!(content.iter().filter(|line| line.ends_with(".example:443")).count(), 21);
    // The file is for its owner alone.
    use std::os::unix::fs::PermissionsExt;
    for path in [folder.path().join("key.pk8"), segments(folder.path()).unwrap()[0].path.clone()] {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    assert_eq!(fs::metadata(folder.path().join("cursors")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn every_flipped_bit_is_found_in_its_line() {
    let folder = written(3, Options::default()).await;
    intact(folder.path());
    let segment = segments(folder.path()).unwrap()[0].path.clone();
    let bytes = fs::read(&segment).unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        fs::write(&segment, &changed).unwrap();
        let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        let report = verify(folder.path(), None, None).unwrap();
        let found = report.faults.iter().any(|fault| fault.line == line || fault.line == line + 1);
        assert!(found, "byte {at} in line {line}: {:?}", report.faults);
    }
}

#[tokio::test]
async fn every_cut_is_found() {
    let folder = written(3, Options::default()).await;
    let segment = segments(folder.path()).unwrap()[0].path.clone();
    let bytes = fs::read(&segment).unwrap();
    for length in 0..bytes.len() {
        fs::write(&segment, &bytes[..length]).unwrap();
        let faults = faults(folder.path());
        assert!(faults.iter().any(|fault| fault.contains("missing at the end")), "{length}: {faults:?}");
    }
}

#[tokio::test]
async fn removed_line_and_removed_segment_are_named() {
    let folder = written(20, small()).await;
    let all = segments(folder.path()).unwrap();
    let middle = &all[1];
    let text = fs::read_to_string(&middle.path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(1);
    fs::write(&middle.path, lines.join("\n") + "\n").unwrap();
    let (seq, name) = (middle.first + 1, middle.name());
    assert_eq!(
        faults(folder.path()),
        [format!("{name}:2: records {seq} to {seq} are missing before this line")]
    );
    fs::remove_file(&middle.path).unwrap();
    let (first, last, name) = (middle.first, all[2].first - 1, all[2].name());
    assert_eq!(
        faults(folder.path()),
        [format!("{name}:1: records {first} to {last} are missing before this line")]
    );
    fs::write(&middle.path, &text).unwrap();
    intact(folder.path());
    fs::remove_file(&all[0].path).unwrap();
    assert!(faults(folder.path())[0].contains("no record says why"));
}

#[tokio::test]
async fn log_that_was_put_back_to_an_earlier_state_is_found_by_a_saved_head() {
    let folder = written(1, Options::default()).await;
    let earlier = tempfile::tempdir().unwrap();
    let files = fs::read_dir(folder.path()).unwrap().flatten();
    for file in files.filter(|file| file.file_type().unwrap().is_file()) {
        fs::copy(file.path(), earlier.path().join(file.file_name())).unwrap();
    }
    let log = Log::open(folder.path(), Options::default()).unwrap();
    log.record_durably(record("later.example")).await.unwrap();
    log.close();
    let saved = folder.path().join("saved");
    fs::copy(folder.path().join(HEAD), &saved).unwrap();
    let faults = |folder: &Path, head: &Path| -> Vec<String> {
        let report = verify(folder, None, Some(head)).unwrap();
        report.faults.iter().map(ToString::to_string).collect()
    };
    intact(earlier.path());
    let found = faults(earlier.path(), &saved);
    assert!(found.len() == 1 && found[0].contains("are missing at the end"), "{found:?}");
    // A head of before is no fault.
    assert_eq!(faults(folder.path(), &earlier.path().join(HEAD)), Vec::<String>::new());
    assert_eq!(faults(folder.path(), &saved), Vec::<String>::new());
    // Another record has its number.
    let log = Log::open(earlier.path(), Options::default()).unwrap();
    log.record_durably(record("other.example")).await.unwrap();
    log.close();
    intact(earlier.path());
    let found = faults(earlier.path(), &saved);
    assert!(!found.is_empty(), "{found:?}");
    fs::write(&saved, "no head").unwrap();
    assert!(faults(folder.path(), &saved)[0].contains("not a signed head"));
    assert!(verify(folder.path(), None, Some(&folder.path().join("absent"))).is_err());
}

#[tokio::test]
async fn log_that_was_written_anew_is_found_by_a_saved_key() {
    let folder = written(1, Options::default()).await;
    let saved = PublicKey::read(&folder.path().join(PUBLIC)).unwrap();
    let other = written(1, Options::default()).await;
    intact(other.path());
    let report = verify(other.path(), Some(saved), None).unwrap();
    assert!(report.faults.iter().any(|fault| fault.fault.contains("signed with the key")), "{report:?}");
    // Changed records whose hashes were computed again contradict the heads.
    let segment = segments(folder.path()).unwrap()[0].path.clone();
    let mut prev = crate::Hash::default();
    let mut forged = Vec::new();
    for (entry, seq) in entries(folder.path()).iter().zip(1..) {
        let event = String::from_utf8(entry.event().to_vec()).unwrap().replace("h0.example", "h1.example");
        prev = crate::line::append(&mut forged, seq, &prev, event.as_bytes());
    }
    fs::write(segment, forged).unwrap();
    let faults = faults(folder.path());
    assert!(faults.iter().any(|fault| fault.contains("signs another")), "{faults:?}");
}

#[tokio::test]
async fn torn_last_line_is_replaced_by_a_record_that_reports_it() {
    let folder = written(2, Options::default()).await;
    let segment = segments(folder.path()).unwrap()[0].clone();
    let bytes = fs::read(&segment.path).unwrap();
    // After a crash, the file ends anywhere in a line that follows the signed ones.
    let line = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap();
    for length in 1..line.len() {
        let copy = copy(folder.path());
        let path = copy.path().join(segment.name());
        fs::write(&path, [&bytes[..], &line[..length]].concat()).unwrap();
        assert_eq!(faults(copy.path()).len(), 1);
        drop(Log::open(copy.path(), Options::default()).unwrap());
        intact(copy.path());
        let expected =
            format!("the last line of {} was incomplete; {length} bytes were cut off", segment.name());
        assert!(content(copy.path()).contains(&expected), "{length}");
    }
}

#[tokio::test]
async fn log_shorter_than_its_head_continues_with_a_gap() {
    let folder = written(6, small()).await;
    let before = intact(folder.path()).last;
    fs::remove_file(&segments(folder.path()).unwrap().last().unwrap().path).unwrap();
    drop(Log::open(folder.path(), small()).unwrap());
    // The gap stays visible, although newer heads follow.
    let report = verify(folder.path(), None, None).unwrap();
    assert!(report.last > before && report.faults.len() == 1, "{report:?}");
    assert!(report.faults[0].fault.contains("are missing before this line"), "{report:?}");
    assert!(content(folder.path()).iter().any(|line| line.ends_with("were written and are missing")));
}

#[tokio::test]
async fn log_that_was_emptied_is_found_and_uses_no_number_twice() {
    let folder = written(2, Options::default()).await;
    let before = intact(folder.path()).last;
    for segment in segments(folder.path()).unwrap() {
        fs::remove_file(segment.path).unwrap();
    }
    fs::remove_file(folder.path().join(HEAD)).unwrap();
    let found = faults(folder.path());
    assert!(found.len() == 1 && found[0].contains("the log was emptied"), "{found:?}");
    drop(Log::open(folder.path(), Options::default()).unwrap());
    let report = verify(folder.path(), None, None).unwrap();
    assert!(report.first == before + 1 && report.faults.len() == 1, "{report:?}");
    assert!(report.faults[0].fault.contains("no record says why"), "{report:?}");
    let missing = format!("records 1 to {before} were written and are missing");
    assert!(content(folder.path()).contains(&missing), "{:?}", content(folder.path()));
}

#[tokio::test]
async fn end_that_was_cut_with_its_heads_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path(), Options::default()).unwrap();
    let head = fs::read(folder.path().join(HEAD)).unwrap();
    let segment = segments(folder.path()).unwrap()[0].path.clone();
    let signed = fs::read(&segment).unwrap();
    log.record_durably(record("h.example")).await.unwrap();
    log.close();
    let last = intact(folder.path()).last;
    fs::write(segment, signed).unwrap();
    fs::write(folder.path().join(HEAD), head).unwrap();
    let found = faults(folder.path());
    let expected = format!("to {last} were on the disk and are missing at the end");
    assert!(found.len() == 1 && found[0].ends_with(&expected), "{found:?}");
    drop(Log::open(folder.path(), Options::default()).unwrap());
    assert!(
        content(folder.path())
            .iter()
            .any(|line| line.ends_with(&format!("to {last} were written and are missing")))
    );
}

#[tokio::test]
async fn damaged_last_line_stays_and_is_reported() {
    let folder = written(2, Options::default()).await;
    let path = segments(folder.path()).unwrap()[0].path.clone();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 10;
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    drop(Log::open(folder.path(), Options::default()).unwrap());
    assert!(content(folder.path()).iter().any(|line| line.ends_with("is damaged")));
    assert!(!faults(folder.path()).is_empty());
    assert!(fs::read(&path).unwrap().starts_with(&bytes));
}

/// Ends the writer at one operation after another, each with three lengths of the write, until it survives.
#[tokio::test]
async fn kill_at_every_operation_loses_no_acknowledged_record() {
    let options = || Options {
        retention: Retention { bytes: 6_000, ..Retention::default() },
        head_interval: Duration::ZERO,
        ..small()
    };
    let mut kills = 0;
    for target in 0.. {
        let mut survived = true;
        for part in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            let reached = Arc::new(AtomicBool::new(false));
            let fault = {
                let (count, reached) = (count.clone(), reached.clone());
                move |operation| {
                    let is_target = count.fetch_add(1, Ordering::Relaxed) == target;
                    reached.fetch_or(is_target, Ordering::Relaxed);
                    let length = if let Operation::Write(length) = operation { length } else { 0 };
                    is_target.then_some(Failure { written: length * part / 2, kills: true })
                }
            };
            let mut acknowledged = BTreeSet::new();
            if let Ok(log) = Log::on(folder.path(), options(), Disk::with(Arc::new(fault))) {
                for index in 0..8 {
                    let host = format!("h{index}.example");
                    if log.record_durably(record(&host)).await.is_ok() {
                        acknowledged.insert(format!("{host}:443"));
                    }
                }
            }
            if reached.load(Ordering::Relaxed) {
                (survived, kills) = (false, kills + 1);
            }
            // The next start repairs, and what was acknowledged is there, unless retention has deleted it.
            drop(Log::open(folder.path(), small()).unwrap());
            let report = intact(folder.path());
            let content = content(folder.path());
            if report.first == 1 {
                let missing: Vec<_> = acknowledged.iter().filter(|host| !content.contains(host)).collect();
                assert!(missing.is_empty(), "operation {target}, part {part}: {missing:?}");
            }
        }
        if survived {
            break;
        }
    }
    assert!(kills > 60, "{kills}");
}

#[tokio::test]
async fn full_disk_refuses_strict_records_and_keeps_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let fault = {
        let full = full.clone();
        move |operation| match operation {
            Operation::Write(length) if full.load(Ordering::Relaxed) => {
                Some(Failure { written: length / 2, kills: false })
            }
            _ => None,
        }
    };
    let log = Log::on(folder.path(), small(), Disk::with(Arc::new(fault))).unwrap();
    log.record_durably(record("before.example")).await.unwrap();
    full.store(true, Ordering::Relaxed);
    log.record(record("kept.example")).await.unwrap();
    for _ in 0..3 {
        let refused = log.record_durably(record("refused.example")).await;
        assert!(matches!(refused, Err(Error::Disk(_))), "{refused:?}");
    }
    full.store(false, Ordering::Relaxed);
    log.record_durably(record("after.example")).await.unwrap();
    drop(log);
    intact(folder.path());
    let content: Vec<_> = content(folder.path()).into_iter().filter(|line| line.ends_with(":443")).collect();
    assert_eq!(content, ["before.example:443", "kept.example:443", "after.example:443"]);
}

#[tokio::test]
async fn log_opens_on_a_disk_with_room_for_records_but_for_no_file() {
    hutch_testkit::require!(root);
    const BLOCK: u64 = 4096;
    let disk = hutch_testkit::disk::Disk::new(8 << 20, &["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"]);
    let folder = disk.path().join("audit");
    // Until the records of the next start fit into the last block of the segment. The new head needs a block of its own.
    let mut before = 0;
    while before == 0 || segments(&folder).unwrap()[0].length().unwrap() % BLOCK > BLOCK / 2 {
        let log = Log::open(&folder, Options::default()).unwrap();
        log.record_durably(record("before.example")).await.unwrap();
        log.close();
        before += 1;
    }
    let rest = disk.path().join("rest");
    let mut file = fs::File::create(&rest).unwrap();
    while std::io::Write::write_all(&mut file, &[1; BLOCK as usize]).is_ok() {}
    let log = Log::open(&folder, Options::default()).unwrap();
    log.record(record("kept.example")).await.unwrap();
    fs::remove_file(rest).unwrap();
    log.record_durably(record("after.example")).await.unwrap();
    drop(log);
    intact(&folder);
    let content: Vec<_> = content(&folder).into_iter().filter(|line| line.ends_with(":443")).collect();
    assert_eq!(content[before..], ["kept.example:443", "after.example:443"]);
}

#[tokio::test]
async fn head_whose_file_cannot_be_written_is_recorded_once() {
    let folder = tempfile::tempdir().unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let fault = {
        let tries = tries.clone();
        move |operation| {
            let fails = operation == Operation::Head && tries.fetch_add(1, Ordering::Relaxed) < 6;
            fails.then_some(Failure { written: 0, kills: false })
        }
    };
    let options = Options { head_interval: Duration::from_millis(1), ..Options::default() };
    let log = Log::on(folder.path(), options, Disk::with(Arc::new(fault))).unwrap();
    let before = entries(folder.path()).len();
    hutch_testkit::wait::until("the file is written", || tries.load(Ordering::Relaxed) >= 7);
    assert_eq!(entries(folder.path()).len(), before);
    log.close();
    intact(folder.path());
}

#[tokio::test]
async fn lost_records_are_counted_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let fault = {
        let full = full.clone();
        move |operation| {
            let fails = matches!(operation, Operation::Write(_)) && full.load(Ordering::Relaxed);
            fails.then_some(Failure { written: 0, kills: false })
        }
    };
    let options = Options { wait: Duration::from_millis(10), ..Options::default() };
    let log = Log::on(folder.path(), options, Disk::with(Arc::new(fault))).unwrap();
    full.store(true, Ordering::Relaxed);
    let large = record(&"x".repeat(250));
    let mut lost = 0;
    while lost < 3 {
        lost += u32::from(log.push(large.clone()).is_err());
    }
    // A caller that can wait is held back first, but not without bound.
    assert!(matches!(log.record(large).await, Err(Error::Full)));
    assert!(matches!(log.room().await, Err(Error::Full)));
    full.store(false, Ordering::Relaxed);
    log.close();
    intact(folder.path());
    let content = content(folder.path());
    assert!(content.iter().any(|line| line.starts_with("4 records were lost")), "{:?}", content.last());
}

#[tokio::test]
async fn segments_are_deleted_when_they_are_sent() {
    let folder = tempfile::tempdir().unwrap();
    let retention = Retention { bytes: 6000, hard_bytes: 20_000, ..Retention::default() };
    let log = Log::open(folder.path(), Options { retention, ..small() }).unwrap();
    // Retention waits for an exporter that follows, and not for one that was used once.
    Cursor { follows: true, ..Cursor::default() }.save(folder.path(), "siem").unwrap();
    Cursor::default().save(folder.path(), "once").unwrap();
    let write = async |count: usize| {
        for _ in 0..count {
            log.record_durably(record("a.example")).await.unwrap();
        }
    };
    write(20).await;
    // The exporter has sent nothing yet.
    assert_eq!(entries(folder.path())[0].record.unwrap().0, 1);
    let (seq, hash) = entries(folder.path())[9].record.unwrap();
    let cursor = Cursor { seq, hash: hash.to_string(), follows: true, ..Cursor::default() };
    cursor.save(folder.path(), "siem").unwrap();
    write(10).await;
    let first = entries(folder.path())[0].record.unwrap().0;
    assert!(first > 1 && first <= seq + 1, "{first}");
    // Above the hard bound, records are deleted all the same, and that is reported.
    write(60).await;
    log.close();
    let report = intact(folder.path());
    assert!(report.first > seq + 1, "{report:?}");
    let removed = content(folder.path()).into_iter().rfind(|line| line.contains("are deleted: "));
    let removed = removed.unwrap();
    assert!(removed.contains("hard bound; not sent by once (") && removed.contains(", siem ("), "{removed}");
}

#[tokio::test]
async fn quiet_log_ends_a_segment_by_time_and_deletes_it_by_age() {
    let folder = tempfile::tempdir().unwrap();
    let retention = Retention { age: Duration::from_millis(100), ..Retention::default() };
    let options = Options { span: Duration::from_millis(50), retention, ..Options::default() };
    let log = Log::open(folder.path(), options.clone()).unwrap();
    log.record_durably(record("a.example")).await.unwrap();
    let count = || segments(folder.path()).unwrap().len();
    hutch_testkit::wait::until("a second segment", || count() == 2);
    let report = intact(folder.path());
    assert_eq!(report.signed, report.last, "the end of the first one is signed");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(count(), 2, "a segment without records does not end");
    log.close();
    // Without any record after the start.
    std::thread::sleep(Duration::from_millis(150));
    let log = Log::open(folder.path(), options).unwrap();
    hutch_testkit::wait::until("its end", || segments(folder.path()).unwrap()[0].first > 1);
    log.close();
    intact(folder.path());
    let why = |line: &String| line.ends_with("are deleted: they are older than their bound");
    assert!(content(folder.path()).iter().any(why), "{:?}", content(folder.path()));
}

#[tokio::test]
async fn durable_reader_follows_rotation_without_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path(), small()).unwrap();
    let mut reader = Reader::durable(folder.path(), 1);
    let mut seen = 0;
    for index in 0..30 {
        log.record_durably(record(&format!("h{index}.example"))).await.unwrap();
        while let Some(entry) = reader.read().unwrap() {
            seen += 1;
            assert_eq!(entry.record.unwrap().0, seen);
        }
        assert!(seen > index);
    }
    // A line that is not on the disk yet is not returned.
    let next = segments(folder.path()).unwrap().pop().unwrap();
    let mut line = Vec::new();
    let last = entries(folder.path()).pop().unwrap().record.unwrap();
    crate::line::append(&mut line, last.0 + 1, &last.1, record("early.example").as_bytes());
    use std::io::Write as _;
    fs::OpenOptions::new().append(true).open(&next.path).unwrap().write_all(&line).unwrap();
    assert_eq!(reader.read().unwrap(), None);
    assert_eq!(reader.read().unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    /// Any change of the bytes of a closed log is found.
    #[test]
    fn any_change_is_found(at in any::<prop::sample::Index>(), kind in 0..3_u8, byte in any::<u8>(), length in 1..300_usize) {
        static FOLDER: std::sync::OnceLock<TempDir> = std::sync::OnceLock::new();
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = FOLDER.get_or_init(|| runtime().block_on(written(12, small())));
        let copy = copy(folder.path());
        let all = segments(copy.path()).unwrap();
        let path = &all[at.index(all.len())].path;
        let mut bytes = fs::read(path).unwrap();
        let before = bytes.clone();
        let at = at.index(bytes.len());
        match kind {
            0 => bytes[at] = byte,
            1 => drop(bytes.drain(at..(at + length).min(before.len()))),
            _ => bytes.insert(at, byte),
        }
        fs::write(path, &bytes).unwrap();
        prop_assert_eq!(bytes != before, !faults(copy.path()).is_empty(), "{:?}", faults(copy.path()));
    }
}
