//! Measures the memory of the router with as many idle WebSockets as descriptors allow.

use std::time::Duration;

use anyhow::Context;

use super::load;
use super::program::Routed;

/// Maximum number of WebSockets. Load and sandbox together take two descriptors for each, and so does the router.
pub(crate) const SOCKETS: usize = 9_000;
/// Number of WebSockets that are opened concurrently.
const AT_ONCE: usize = 50;
/// Time until memory that was needed only to open them is released.
const SETTLE: Duration = Duration::from_secs(2);

/// Opens the WebSockets, prints the memory, and checks that each still passes bytes.
pub(crate) async fn measure(name: &str, routed: &Routed) -> anyhow::Result<()> {
    let before = routed.resident_kib();
    let mut sockets = Vec::with_capacity(SOCKETS);
    while sockets.len() < SOCKETS {
        let opened = (0..AT_ONCE).map(|_| load::open_websocket(routed.port, &routed.headers));
        sockets.extend(futures::future::try_join_all(opened).await.context("idle WebSockets")?);
    }
    tokio::time::sleep(SETTLE).await;
    let after = routed.resident_kib();
    for socket in &mut sockets {
        load::echo(socket).await.context("a WebSocket after silence")?;
    }
    let used = routed.resident_kib();
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!(
        "| {name} | {:.1} | {:.1} | {:.1} | {:.1} |",
        mib(before),
        mib(after),
        mib(used),
        after.saturating_sub(before) as f64 / SOCKETS as f64
    );
    Ok(())
}
