//! `hutch egress`: the proxy of sandboxes for the programs of this machine, which name it in HTTPS_PROXY.
//!
//! This process reads files and opens listeners. What clients send is parsed by the process that it starts, which has no
//! privilege and no file.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use hutch_egress::AuthorityKeys;
use hutch_egress::control::Order;
use hutch_jail::{IdRange, IdRanges};
use hutch_policy::{Level, Mode};
use hutch_privsep::{Channel, send_now};

use crate::cli::EgressArguments;
use crate::controller::gateway::token_key;
use crate::credentials::Wanted;
use crate::egress::{Audience, Outside, Process, spawn};
use crate::{authority_folder, gateway, run, signals, upstream_proxy};

/// Number of the only sandbox of the process: its clients.
const CLIENTS: u64 = 0;

/// Runs the command.
pub(crate) fn main(arguments: &EgressArguments) -> ExitCode {
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &EgressArguments) -> anyhow::Result<()> {
    if let Some(file) = &arguments.token_key_file {
        return gateway::serve(arguments, token_key(file, "--token-key-file")?);
    }
    let mut levels = run::Policies::without_files(&arguments.policy)?;
    run::open_private(&mut levels, &arguments.allow_private);
    let upstream = upstream_proxy::of(arguments.upstream_proxy.as_ref())?;
    let (listener, address) = bind(arguments.listen).context("--listen")?;
    let metrics = arguments.metrics_listen.map(bind).transpose().context("--metrics-listen")?;
    let authority = match &arguments.ca_dir {
        Some(folder) => {
            Some(authority_folder::open(folder).with_context(|| format!("--ca-dir {}", folder.display()))?)
        }
        None => None,
    };
    let credentials = Wanted::all(&levels)?;
    ensure!(
        credentials.is_empty() || authority.is_some(),
        "--policy: spec.credentials: needs --ca-dir DIR, because TLS to the hosts of a credential ends at the proxy"
    );
    Wanted::warn_of_closed(&credentials, &levels);
    warn(&levels, authority.is_some(), address);
    run::warn_of_observers(&levels);
    run::warn_without_effect(&levels);
    let ids = match rustix::process::geteuid().is_root() {
        true => Some(IdRanges::open(std::process::id())?.take()?),
        false => None,
    };
    let keys = authority.as_ref().map(|authority| &authority.keys);
    let metrics_at = metrics.as_ref().map(|(_, address)| *address);
    // On this thread, with which the process ends.
    let (id, reads) = (ids.as_ref().map(IdRange::base), authority.is_some());
    for (name, placeholder) in credentials.iter().filter_map(Wanted::variable) {
        eprintln!("hutch: placeholder for the clients: {name}={placeholder}");
    }
    let outside = Outside { credentials, ..Outside::new(upstream) };
    let (process, channel) = spawn(id, Audience::Log, outside, (reads, false))?;
    order(&channel, &levels, keys, listener, metrics.map(|(listener, _)| listener)).context("the proxy")?;
    if let Some(authority) = &authority {
        eprintln!("hutch: clients must trust the authority in {}", authority.certificate.display());
    }
    if let Some(address) = metrics_at {
        eprintln!("hutch: metrics at http://{address}/metrics");
    }
    wait(process, channel, address)
}

fn bind(address: SocketAddr) -> anyhow::Result<(OwnedFd, SocketAddr)> {
    let listener = TcpListener::bind(address).with_context(|| address.to_string())?;
    let address = listener.local_addr()?;
    Ok((listener.into(), address))
}

/// Prints what a user may not expect.
fn warn(levels: &[Level], has_authority: bool, address: SocketAddr) {
    if !address.ip().is_loopback() {
        eprintln!("hutch: --listen {address}: other machines may reach this proxy, which needs no password");
    }
    if has_authority {
        return;
    }
    for level in levels.iter().filter(|level| level.mode == Mode::Enforce) {
        if level.scanner.is_some() {
            eprintln!(
                "hutch: the scanner of policy {:?} reads requests: without --ca-dir, TLS is refused but for rules with \
                 `tls: Passthrough`, of which it reads the names of hosts",
                level.name
            );
        }
        let rules = level.egress.iter().flat_map(|egress| &egress.rules);
        for rule in rules.filter(|rule| rule.reads_requests()) {
            eprintln!(
                "hutch: rule {:?} of policy {:?} reads requests: without --ca-dir, TLS to its hosts is refused",
                rule.name, level.name
            );
        }
    }
}

/// Sends everything that the process needs.
fn order(
    channel: &OwnedFd,
    levels: &[Level],
    keys: Option<&AuthorityKeys>,
    listener: OwnedFd,
    metrics: Option<OwnedFd>,
) -> std::io::Result<()> {
    let channel = channel.as_fd();
    for (id, level) in (0..).zip(levels) {
        send_now(channel, &Order::Level { id, level: level.clone() }, &[])?;
    }
    let numbers = (0..).take(levels.len()).collect();
    send_now(channel, &Order::Levels { sandbox: CLIENTS, levels: numbers }, &[])?;
    if let Some(keys) = keys {
        send_now(channel, &Order::Authority { sandbox: CLIENTS, keys: keys.clone() }, &[])?;
    }
    if let Some(metrics) = metrics {
        send_now(channel, &Order::Metrics, &[metrics.as_fd()])?;
    }
    send_now(channel, &Order::Explicit { sandbox: CLIENTS }, &[listener.as_fd()])
}

/// Waits for a signal, or for the end of the process, which is a failure.
fn wait(process: Process, channel: OwnedFd, address: SocketAddr) -> anyhow::Result<()> {
    let runtime = crate::runtime::one_thread()?;
    let ended = runtime.block_on(async {
        let stop = signals::to_stop()?;
        let channel = Channel::new(channel)?;
        // Last: everything is served, and a signal ends it in order.
        eprintln!("hutch: proxy at http://{address}");
        let ended = async { while let Ok(Some(_)) = channel.receive_bare().await {} };
        tokio::select! {
            () = stop.wait() => Ok::<_, anyhow::Error>(false),
            () = ended => Ok(true),
        }
    })?;
    drop(process);
    if ended {
        bail!("the proxy has ended");
    }
    Ok(())
}
