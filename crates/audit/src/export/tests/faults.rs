//! Receivers that are slow or killed, and exporters that end at any point: records may be repeated, and none is lost.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, mpsc};

use super::*;

/// A receiver that answers a request only when it has a permit. It reports each one that has arrived.
async fn slow(permits: Arc<Semaphore>) -> (SocketAddr, Requests, mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (requests, (arrived, arrivals)) = (Requests::default(), mpsc::unbounded_channel());
    let seen = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (seen, permits, arrived) = (seen.clone(), permits.clone(), arrived.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (seen, permits, arrived) = (seen.clone(), permits.clone(), arrived.clone());
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await?.to_bytes();
                    seen.lock().unwrap().push((head.headers, body));
                    let _ = arrived.send(());
                    permits.acquire().await.unwrap().forget();
                    Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::new())))
                }
            });
            let stream = TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(stream, service));
        }
    });
    (address, requests, arrivals)
}

fn webhook(folder: &Path, address: SocketAddr, follow: bool) -> Exporter {
    let options = ExportOptions { secret: Some(SECRET.to_vec()), ..ExportOptions::default() };
    let destination = format!("webhook+http://{address}").parse().unwrap();
    let mut exporter = Exporter::new(folder, "siem", &destination, &options, follow).unwrap();
    exporter.limit = 7;
    exporter
}

fn received(requests: &Requests) -> Vec<u64> {
    requests.lock().unwrap().iter().flat_map(|(_, body)| numbers(body)).collect()
}

#[tokio::test]
async fn receiver_that_answers_late_holds_the_log_not_back_and_gets_each_record_once() {
    let folder = log(20).await;
    let log = Log::open(folder.path(), Options { strict: true, ..Options::default() }).unwrap();
    let permits = Arc::new(Semaphore::new(0));
    let (address, requests, mut arrivals) = slow(permits.clone()).await;
    let mut exporter = webhook(folder.path(), address, true);
    let (stop, stopped) = watch::channel(false);
    let exporting = tokio::spawn(async move { exporter.run(stopped).await.map(|()| exporter.sent()) });
    arrivals.recv().await.unwrap();
    // It has a batch, and no answer: the log grows, with records on the disk.
    for records in 1..=50 {
        let event = Event::log(SystemTime::now(), &crate::event::LogEvent::Lost { records });
        log.record(event.record()).await.unwrap();
    }
    log.close();
    assert_eq!(Cursor::read(folder.path(), "siem").unwrap().seq, 0);
    permits.add_permits(1000);
    let end = last(folder.path());
    while received(&requests).last() != Some(&end) {
        arrivals.recv().await.unwrap();
    }
    stop.send(true).unwrap();
    assert_eq!(exporting.await.unwrap().unwrap(), end);
    assert_eq!(received(&requests), (1..=end).collect::<Vec<_>>());
}

#[tokio::test]
async fn receiver_that_never_answers_gets_the_batch_again() {
    let folder = log(20).await;
    let permits = Arc::new(Semaphore::new(0));
    let (address, requests, mut arrivals) = slow(permits.clone()).await;
    let mut exporter = webhook(folder.path(), address, false);
    let mut stepping = Box::pin(exporter.step());
    // The batch has arrived; only then time passes.
    tokio::select! {
        step = &mut stepping => panic!("{step:?} without an answer"),
        arrived = arrivals.recv() => arrived.unwrap(),
    }
    tokio::time::pause();
    let step = stepping.await.unwrap();
    tokio::time::resume();
    assert!(matches!(step, Step::Failed(_)), "{step:?}");
    assert_eq!(Cursor::read(folder.path(), "siem").unwrap().seq, 0);
    permits.add_permits(1000);
    exporter.run(watch::channel(false).1).await.unwrap();
    let all = received(&requests);
    assert!(all.len() as u64 > last(folder.path()), "the first batch came twice");
    complete(all, last(folder.path()));
}

#[tokio::test]
async fn exporter_that_ends_between_the_answer_and_its_cursor_loses_nothing() {
    let folder = log(40).await;
    let permits = Arc::new(Semaphore::new(1000));
    let (address, requests, mut arrivals) = slow(permits).await;
    for _ in 0..3 {
        let mut exporter = webhook(folder.path(), address, false);
        // The receiver has the batch, and the exporter ends before it learns of that.
        let stepping = exporter.step();
        tokio::select! {
            biased;
            arrived = arrivals.recv() => arrived.unwrap(),
            step = stepping => assert_eq!(step.unwrap(), Step::Sent),
        }
    }
    webhook(folder.path(), address, false).run(watch::channel(false).1).await.unwrap();
    complete(received(&requests), last(folder.path()));
}

#[tokio::test]
async fn exporter_that_stops_sends_what_is_on_the_disk() {
    let folder = log(60).await;
    let permits = Arc::new(Semaphore::new(1000));
    let (address, requests, _arrivals) = slow(permits).await;
    let mut exporter = webhook(folder.path(), address, true);
    let (_stop, stopped) = watch::channel(true);
    exporter.run(stopped).await.unwrap();
    complete(received(&requests), last(folder.path()));
}

/// Port and folder of the receiver that runs as a process.
const RECEIVER: &str = "HUTCH_TEST_SYSLOG_RECEIVER";

/// A slow receiver of syslog. What it has not kept stays in its connection.
#[test]
#[ignore = "a process of the next test"]
fn syslog_receiver() {
    let Ok(place) = std::env::var(RECEIVER) else { return };
    let (port, folder) = place.split_once(' ').unwrap();
    let listener = std::net::TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
    for (number, stream) in listener.incoming().enumerate() {
        let (mut stream, mut buffer) = (stream.unwrap(), [0; 1500]);
        let file = Path::new(folder).join(format!("{}-{number}", std::process::id()));
        let mut file = std::fs::File::create(file).unwrap();
        while let Ok(length @ 1..) = stream.peek(&mut buffer) {
            file.write_all(&buffer[..length]).unwrap();
            stream.read_exact(&mut buffer[..length]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A receiver as a process.
struct Process(Child);

impl Process {
    fn start(place: &str) -> Process {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "export::tests::faults::syslog_receiver", "--ignored"]);
        Process(program.env(RECEIVER, place).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

#[tokio::test]
async fn syslog_receiver_that_is_killed_again_and_again_gets_every_record() {
    let (folder, kept) = (log(1).await, tempfile::tempdir().unwrap());
    let log = Log::open(folder.path(), Options::default()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let place = format!("{port} {}", kept.path().display());
    let destination = format!("syslog+tcp://127.0.0.1:{port}").parse().unwrap();
    let mut exporter =
        Exporter::new(folder.path(), "siem", &destination, &ExportOptions::default(), true).unwrap();
    let Sender::Syslog(syslog) = &mut exporter.sender else { panic!("syslog") };
    syslog.lasts = Duration::from_millis(100);
    let (stop, stopped) = watch::channel(false);
    let exporting = tokio::spawn(async move { exporter.run(stopped).await.map(|()| exporter.sent()) });
    let flows = Arc::new(AtomicBool::new(true));
    let (flowing, growing) = (flows.clone(), log.clone());
    let writing = tokio::spawn(async move {
        for records in 0.. {
            if !flowing.load(Ordering::Relaxed) {
                return;
            }
            let event = Event::log(SystemTime::now(), &crate::event::LogEvent::Lost { records });
            growing.record(event.record()).await.unwrap();
            if records % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let sent = || Cursor::read(folder.path(), "siem").unwrap().seq;
    let bytes = || {
        let files = std::fs::read_dir(kept.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let mut receiver = Process::start(&place);
    for round in 0..15 {
        let before = sent();
        until("records are acknowledged", || sent() > before).await;
        // In the middle of what follows.
        let read = bytes();
        until("more records arrive", || bytes() > read + round * 700).await;
        drop(receiver);
        receiver = Process::start(&place);
    }
    flows.store(false, Ordering::Relaxed);
    writing.await.unwrap();
    log.close();
    let end = last(folder.path());
    until("all records are acknowledged", || sent() == end).await;
    stop.send(true).unwrap();
    assert_eq!(exporting.await.unwrap().unwrap(), end);
    drop(receiver);
    let mut received = Vec::new();
    for file in std::fs::read_dir(kept.path()).unwrap() {
        let content = std::fs::read(file.unwrap().path()).unwrap();
        received.extend(syslog_numbers(&messages(&content[..], usize::MAX).await));
    }
    complete(received, end);
}

#[tokio::test]
async fn syslog_receiver_that_does_not_end_its_connection_has_acknowledged_nothing() {
    let folder = log(5).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let destination = format!("syslog+tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let options = ExportOptions::default();
    let mut exporter = Exporter::new(folder.path(), "siem", &destination, &options, false).unwrap();
    assert_eq!(exporter.step().await.unwrap(), Step::Sent);
    let (mut stream, _) = listener.accept().await.unwrap();
    // It has read everything, and sends bytes instead of an end.
    assert_eq!(exporter.batch.len(), 0);
    let talking = tokio::spawn(async move {
        let received = messages(&mut stream, usize::MAX).await;
        let _ = stream.write_all(&[b'x'; 100_000]).await;
        (received, stream)
    });
    tokio::time::pause();
    let step = exporter.confirm().await.unwrap();
    tokio::time::resume();
    assert!(matches!(step, Step::Failed(_)), "{step:?}");
    assert_eq!(Cursor::read(folder.path(), "siem").unwrap().seq, 0);
    complete(syslog_numbers(&talking.await.unwrap().0), last(folder.path()));
    // Everything is sent again.
    let receiving =
        tokio::spawn(async move { messages(listener.accept().await.unwrap().0, usize::MAX).await });
    exporter.run(watch::channel(false).1).await.unwrap();
    complete(syslog_numbers(&receiving.await.unwrap()), last(folder.path()));
}
