//! WebSockets that say nothing, as many as descriptors allow, and what they cost the router.

use std::time::Duration;

use anyhow::Context;

use super::load;
use super::program::Routed;

/// How many. The load and the sandbox together take two descriptors for each, and so does the router.
pub(crate) const SOCKETS: usize = 9_000;
/// How many are opened at the same time.
const AT_ONCE: usize = 50;
/// Time for everything that was only needed to open them to be given back.
const SETTLE: Duration = Duration::from_secs(2);

/// Opens them, prints what they cost, and sees that each still passes bytes on.
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
