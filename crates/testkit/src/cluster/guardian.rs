use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;

/// Ends the programs and removes the folder when its input closes: the end of this process closes it, however it ends.
const SCRIPT: &str = r#"
pids= addresses=
while read -r word it; do
    case $word in
        watch) pids="$pids $it" ;;
        forget) kept=; for p in $pids; do [ "$p" = "$it" ] || kept="$kept $p"; done; pids=$kept ;;
        address) addresses="$addresses $it" ;;
    esac
done
kill -s KILL -- $pids 2>/dev/null
for address in $addresses; do ip address del "$address/32" dev lo 2>/dev/null; done
rm -rf "$1"
"#;

/// A shell that outlives this process by as long as it takes to clean up.
pub(super) struct Guardian {
    shell: Child,
    orders: Option<ChildStdin>,
}

impl Guardian {
    pub(super) fn start(folder: &Path) -> anyhow::Result<Guardian> {
        use std::os::unix::process::CommandExt;
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "guardian"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Control-C in a terminal is for the tests; the guardian then still has work to do.
            .process_group(0)
            .spawn()
            .context("sh")?;
        let orders = shell.stdin.take();
        Ok(Guardian { shell, orders })
    }

    /// From now on the process ends with this one.
    pub(super) fn watch(&mut self, pid: u32) -> anyhow::Result<()> {
        self.order(&format!("watch {pid}\n"))
    }

    /// The process is about to end by itself, after which another process may have its number.
    pub(super) fn forget(&mut self, pid: u32) -> anyhow::Result<()> {
        self.order(&format!("forget {pid}\n"))
    }

    /// The same of every process of a group.
    #[cfg(feature = "worker")]
    pub(super) fn watch_group(&mut self, group: i32) -> anyhow::Result<()> {
        self.order(&format!("watch -{group}\n"))
    }

    #[cfg(feature = "worker")]
    pub(super) fn forget_group(&mut self, group: i32) -> anyhow::Result<()> {
        self.order(&format!("forget -{group}\n"))
    }

    /// The address goes with this process, if it is still there.
    #[cfg(feature = "worker")]
    pub(super) fn watch_address(&mut self, address: std::net::Ipv4Addr) -> anyhow::Result<()> {
        self.order(&format!("address {address}\n"))
    }

    fn order(&mut self, line: &str) -> anyhow::Result<()> {
        let orders = self.orders.as_mut().context("the guardian is at its end")?;
        orders.write_all(line.as_bytes()).context("telling the guardian")
    }

    /// Ends everything and waits for it.
    pub(super) fn end(&mut self) {
        drop(self.orders.take());
        // It was ours and has not been waited for, so there is nothing that could fail.
        let _ = self.shell.wait();
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.end();
    }
}
