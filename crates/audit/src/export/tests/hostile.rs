//! Receivers whose answers do not end, or lead elsewhere.

use tokio::io::AsyncWriteExt;

use super::*;

/// Answers each request with these bytes, the last of them without end, until the client has gone.
async fn receiver_of(first: &'static str, endless: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let mut written = stream.write_all(first.as_bytes()).await;
                while written.is_ok() && !endless.is_empty() {
                    written = stream.write_all(endless).await;
                }
                // A client that waits for more is not kept waiting by an end.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn answer_without_end_or_to_elsewhere_accepts_nothing() {
    let folder = log(5).await;
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place: &'static str = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n",
        elsewhere.local_addr().unwrap()
    )
    .leak();
    let began = std::time::Instant::now();
    let answers: [(&str, &[u8], &str); 5] = [
        (place, b"", "307"),
        ("HTTP/1.1 200 OK\r\n\r\n", &[b'x'; 4096], "limit"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1000\r\n", ""),
        ("HTTP/1.1 200 OK\r\n", b"a: b\r\n", ""),
        ("HTTP/1.1 200 OK\r\na: ", &[b'x'; 4096], ""),
    ];
    for (number, (first, endless, expected)) in answers.into_iter().enumerate() {
        let address = receiver_of(first, endless).await;
        for kind in ["webhook+http", "otlp+http", "otlp+grpc"] {
            let destination = format!("{kind}://{address}").parse().unwrap();
            let headers = (kind != "webhook+http").then(|| "authorization: Bearer of-this-test".to_owned());
            let secret = Some(SECRET.to_vec());
            let options = ExportOptions { secret, headers, ..ExportOptions::default() };
            let name = format!("r{number}-{}", kind.replace('+', "-"));
            let mut exporter = Exporter::new(folder.path(), &name, &destination, &options, false).unwrap();
            exporter.fill().unwrap();
            let failure = exporter.sender.send(&exporter.batch).await.unwrap_err().cause;
            assert!(failure.len() < 300 && !failure.contains("of-this-test"), "{failure}");
            assert!(kind == "otlp+grpc" || failure.contains(expected), "{name}: {failure}");
            assert_eq!(exporter.sent(), 0);
        }
    }
    // None of them waits for the end of its time.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let reached = tokio::time::timeout(Duration::from_millis(50), elsewhere.accept()).await;
    assert!(reached.is_err(), "the records went elsewhere");
}
