//! Receivers that are slow, and exporters that end at any point: records may be repeated, and none is lost.

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
