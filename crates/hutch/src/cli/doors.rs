//! Flags of the commands that decide by policies outside of a sandbox.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use hutch_policy::Cidr;

use super::AuditMode;
use crate::quantity;
use crate::upstream_proxy::ProxyUrl;

/// `hutch egress`.
#[derive(Args)]
pub(crate) struct EgressArguments {
    /// Connect clients to what the SandboxPolicy in this file allows. Repeatable: every policy must allow it.
    #[arg(long, value_name = "FILE", required_unless_present = "cluster", conflicts_with = "cluster")]
    pub(crate) policy: Vec<PathBuf>,
    /// Serve the Sandboxes of a cluster, each by the policies that apply to it there.
    #[arg(long, requires = "token_key_file")]
    pub(crate) cluster: bool,
    /// With --cluster: file with the key of the Sandboxes' tokens, 32 bytes at least. `hutch controller` has the same one.
    #[arg(long, value_name = "FILE", requires = "cluster", conflicts_with = "policy")]
    pub(crate) token_key_file: Option<PathBuf>,
    /// With --cluster: kubeconfig file; else KUBECONFIG, the ServiceAccount of this Pod, or ~/.kube/config.
    #[arg(long, value_name = "FILE", requires = "cluster", conflicts_with = "policy")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// With --cluster: image of this program, by which a Pod probes whether the network plugin enforces NetworkPolicy.
    #[arg(long, value_name = "IMAGE", requires = "cluster", conflicts_with = "policy")]
    pub(crate) probe_image: Option<String>,
    /// With --cluster: folder for the audit log, in its folder `audit`. Without it, nothing is recorded.
    #[arg(long, value_name = "DIR", requires = "cluster", conflicts_with = "policy")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The audit log: off, on, or strict, where nothing that a Sandbox requests happens before its record is on the disk.
    #[arg(long, value_enum, value_name = "MODE", default_value = "on", requires = "data_dir")]
    pub(crate) audit: AuditMode,
    /// Address of the proxy, for HTTP_PROXY, HTTPS_PROXY and SOCKS; port 0 picks a free one.
    #[arg(long, value_name = "ADDR", value_parser = quantity::socket_address)]
    pub(crate) listen: SocketAddr,
    /// Let allowed names lead to these addresses, although they do not belong to the internet: a range such as 10.0.0.0/8 or
    /// 127.0.0.1. Repeatable.
    #[arg(long, value_name = "CIDR", value_parser = crate::allow::private, conflicts_with = "cluster")]
    pub(crate) allow_private: Vec<Cidr>,
    /// Folder of the certificate authority by which TLS ends at the proxy, where rules read requests; created when missing.
    /// Clients must trust DIR/ca.pem. With --cluster: folder with tls.crt and tls.key, as a Secret is mounted.
    #[arg(long, value_name = "DIR")]
    pub(crate) ca_dir: Option<PathBuf>,
    /// Connect through this HTTP proxy: http://[USER:PASSWORD@]HOST:PORT. The default is the variable HUTCH_UPSTREAM_PROXY,
    /// which other users of the machine cannot see.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream_proxy: Option<ProxyUrl>,
    /// Address at which /metrics is served, for Prometheus; port 0 picks a free one.
    #[arg(long, value_name = "ADDR", value_parser = quantity::socket_address)]
    pub(crate) metrics_listen: Option<SocketAddr>,
}

/// `hutch probe-network`, which a Pod of the gateway runs.
#[derive(Args)]
pub(crate) struct ProbeArguments {
    /// Address that its NetworkPolicy opens, where it reports.
    #[arg(long)]
    pub(crate) open: SocketAddr,
    /// Address that its NetworkPolicy closes.
    #[arg(long)]
    pub(crate) closed: SocketAddr,
    /// First word of the report.
    #[arg(long)]
    pub(crate) nonce: String,
}

/// `hutch mcp-guard`.
#[derive(Args)]
pub(crate) struct McpGuardArguments {
    /// Pass the calls that the entries `mcp` of the SandboxPolicy in this file allow. Repeatable: every policy must allow it.
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) policy: Vec<PathBuf>,
    /// The server and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
