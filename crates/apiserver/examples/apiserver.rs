//! The API server alone, for trying clients on it: `cargo run -p hutch-apiserver --example apiserver -- DIR`.
//! Writes `DIR/kubeconfig` and serves until it is interrupted. No Pod runs.

use std::path::PathBuf;

use hutch_apiserver::{ApiServer, Config, Identity};
use hutch_serve::{Authority, Listener, Shutdown};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("which folder?")?);
    let start = std::time::Instant::now();
    let listener = Listener::bind("127.0.0.1:0".parse()?).await?;
    let address = listener.address();
    let config = Config {
        data: Some(folder.clone()),
        default_node: Some("hutch".into()),
        address: address.to_string(),
        ..Config::default()
    };
    let server = ApiServer::open(config).await?;
    let authority = Authority::open(&folder.join("ca"))?;
    let token = uuid::Uuid::new_v4().to_string();
    server.accept_token(&token, Identity::admin());
    let tls = authority.server_config(&[])?;
    std::fs::write(folder.join("ca.pem"), authority.certificate_pem())?;
    let ca = folder.join("ca.pem");
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: hutch\nclusters:\n- name: hutch\n  cluster: {{server: \"https://{address}\", certificate-authority: {}}}\nusers:\n- name: admin\n  user: {{token: {token}}}\ncontexts:\n- name: hutch\n  context: {{cluster: hutch, user: admin, namespace: default}}\n",
        ca.display()
    );
    std::fs::write(folder.join("kubeconfig"), kubeconfig)?;
    println!("ready at https://{address} after {:?}", start.elapsed());
    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.trigger();
        }
    });
    listener.serve_tls(server.authenticated(), tls, shutdown).await;
    server.close().await;
    Ok(())
}
