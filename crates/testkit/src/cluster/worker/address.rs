use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, ensure};

/// An address of this machine's `lo`, until it is dropped.
pub(super) struct Address(Ipv4Addr);

impl Address {
    /// One that no other process of this machine uses: several may run such tests, and several Nodes be in one.
    pub(super) fn next() -> Ipv4Addr {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ipv4Addr::from(0x0a70_0000 | (std::process::id() & 0x3f) << 14 | (number & 0x3fff))
    }

    pub(super) fn add(address: Ipv4Addr) -> anyhow::Result<Address> {
        let status = change("add", address).context("ip")?;
        ensure!(status.success(), "`ip address add {address}/32 dev lo` failed: {status}");
        Ok(Address(address))
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // The guardian tries again.
        let _ = change("del", self.0);
    }
}

fn change(verb: &str, address: Ipv4Addr) -> std::io::Result<std::process::ExitStatus> {
    let mut command = Command::new("ip");
    command.args(["address", verb, &format!("{address}/32"), "dev", "lo"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
}
