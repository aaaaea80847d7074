//! On a real control plane, with Pods that are processes: the commands of `hutch` and kubectl for a Sandbox, and tokens
//! for one Sandbox at a `hutch router`.

mod commands;
mod files;
mod kubectl;
mod mode;
mod tokens;

use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use hutch_api::Sandbox;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::control_plane::ControlPlane;
use crate::harness::{HUTCH, refused, succeeded, text};

/// File of the key that signs tokens.
const KEY: &str = "router.key";
/// A router that lets in who has a token for the Sandbox.
const ROUTER: &str = "router";

/// Cluster that the tests of this program share, until the program ends.
struct Shared {
    runtime: Runtime,
    plane: ControlPlane,
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let runtime = Runtime::new().expect("a runtime");
        let plane = runtime.block_on(async {
            let mut plane = ControlPlane::start().await;
            std::fs::write(plane.file(KEY), "0123456789abcdef0123456789abcdef").expect("written");
            let flags = [
                "--authz-mode=scoped-token".to_owned(),
                format!("--authz-scoped-token-secret-file={}", plane.file(KEY)),
                "--zap-log-level=debug".to_owned(),
            ];
            plane.router(ROUTER, &flags);
            plane.listening(&[ROUTER]).await;
            plane
        });
        Shared { runtime, plane }
    })
}

impl Shared {
    fn command(&self, program: &str, words: &[&str]) -> Command {
        let cluster = &self.plane.cluster;
        let mut command = Command::new(program);
        command.args(words).env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.folder());
        command.stdin(Stdio::null());
        command
    }

    fn hutch(&self, words: &[&str]) -> Command {
        self.command(HUTCH, words)
    }

    fn run(&self, words: &[&str]) -> Output {
        self.hutch(words).output().expect("hutch starts")
    }

    /// `hutch` with these words must succeed; what it printed.
    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        succeeded(&words.join(" "), &self.run(words))
    }

    /// The same of kubectl.
    #[track_caller]
    fn kubectl(&self, words: &[&str]) -> String {
        succeeded(&words.join(" "), &self.command("kubectl", words).output().expect("kubectl starts"))
    }

    /// Makes a Sandbox whose containers are these; without any, one that runs sandboxd. Its `metadata.uid`.
    fn sandbox(&self, name: &str, containers: Value) -> String {
        let main = json!([{"name": "main", "image": "i", "env": [{"name": "WHO", "value": name}]}]);
        let containers = if containers.is_null() { main } else { containers };
        let sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
            "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 1, "containers": containers}}}});
        let sandbox = serde_json::from_value(sandbox).expect("a Sandbox");
        let api: Api<Sandbox> = Api::default_namespaced(self.plane.client.clone());
        let made = self.runtime.block_on(api.create(&PostParams::default(), &sandbox)).expect(name);
        made.metadata.uid.expect("a UID")
    }

    #[track_caller]
    fn ready(&self, name: &str) {
        self.kubectl(&["wait", "sandbox", name, "--for=condition=Ready", "--timeout=90s"]);
    }
}
