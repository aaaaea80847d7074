//! The gateway that `--egress-gateway` names.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use hutch_controller::{Gateway, TokenKey};
use hutch_serve::error_text;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};

use super::flags::Flags;
use crate::egress::{Outside, certificates};

/// Place of a gateway.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Address(SocketAddr),
    Service { name: String, namespace: String, port: u16 },
}

/// Reads the key of tokens; `flag` named its file.
pub(crate) fn token_key(file: &Path, flag: &str) -> anyhow::Result<TokenKey> {
    let named = || format!("{flag}: {}", file.display());
    let bytes = std::fs::read(file).with_context(named)?;
    TokenKey::new(&bytes).map_err(anyhow::Error::msg).with_context(named)
}

/// Returns the gateway, if the flags name one. The address of its Service is read once: it does not change.
pub(super) async fn of(
    flags: &Flags,
    client: impl FnOnce() -> anyhow::Result<Client>,
) -> anyhow::Result<Option<Arc<Gateway>>> {
    if flags.egress_gateway.is_empty() {
        return Ok(None);
    }
    let key = token_key(Path::new(&flags.egress_gateway_token_key_file), "--egress-gateway-token-key-file")?;
    let named = || format!("--egress-gateway={}", flags.egress_gateway);
    let gateway = match place(&flags.egress_gateway).with_context(named)? {
        Place::Address(address) => Gateway::at(address, key),
        Place::Service { name, namespace, port } => {
            let services: Api<Service> = Api::namespaced(client()?, &namespace);
            let service = services.get(&name).await.map_err(|error| anyhow!(error_text(&error)));
            let service = service.with_context(named)?;
            Gateway::behind(&service, port, key).map_err(anyhow::Error::msg).with_context(named)?
        }
    };
    let gateway = match flags.egress_gateway_ca_file.as_str() {
        "" => gateway,
        file => {
            let named = || format!("--egress-gateway-ca-file={file}");
            let bundle = bundle(Path::new(file), &Outside::new(None)).with_context(named)?;
            gateway.trusting(bundle).map_err(anyhow::Error::msg).with_context(named)?
        }
    };
    Ok(Some(Arc::new(gateway)))
}

/// Returns the certificates of the file, and behind them those of the machine: programs in the Pods know no others.
fn bundle(file: &Path, outside: &Outside) -> anyhow::Result<String> {
    let authority = certificates(&std::fs::read(file)?);
    if authority.is_empty() {
        bail!("it has no certificate; it must be PEM");
    }
    let public = outside.bundle().context("the public certificates")?;
    if public.is_empty() {
        bail!("there are no public certificates: name a file with them in the variable SSL_CERT_FILE");
    }
    Ok(String::from_utf8([authority, public].concat())?)
}

fn place(url: &str) -> anyhow::Result<Place> {
    let wrong = || anyhow!("must be http://SERVICE.NAMESPACE:PORT or http://ADDRESS:PORT");
    let rest = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')).ok_or_else(wrong)?;
    if let Ok(address) = rest.parse() {
        return Ok(Place::Address(address));
    }
    let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let mut labels = host.split('.');
    let (name, namespace) = (labels.next().unwrap_or_default(), labels.next().unwrap_or_default());
    let plain = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if !plain(name) || !plain(namespace) || labels.next().is_some_and(|label| label != "svc") {
        return Err(wrong());
    }
    Ok(Place::Service { name: name.to_owned(), namespace: namespace.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_has_both_kinds_of_certificates_and_never_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let certificate =
            |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        let (own, public) = (certificate("OWN"), certificate("PUBLIC"));
        let key = "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----\n";
        let outside = |text: &str| Outside { authorities: Some(file("public", text)), ..Outside::default() };
        let both = bundle(&file("own", &(own.clone() + key)), &outside(&(public.clone() + key)));
        assert_eq!(both.unwrap(), own.clone() + &public);
        assert!(bundle(&file("none", key), &outside(&public)).is_err());
        let error = bundle(&file("own", &own), &outside("")).unwrap_err();
        assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
    }

    #[test]
    fn gateway_is_an_address_or_a_service() {
        let service = |port| Place::Service { name: "g".into(), namespace: "n".into(), port };
        assert_eq!(place("http://g.n:3128").unwrap(), service(3128));
        assert_eq!(place("http://g.n.svc.cluster.local:80/").unwrap(), service(80));
        assert_eq!(place("http://10.0.0.1:1").unwrap(), Place::Address("10.0.0.1:1".parse().unwrap()));
        assert_eq!(place("http://[::1]:1").unwrap(), Place::Address("[::1]:1".parse().unwrap()));
        for wrong in
            ["", "g.n:1", "https://g.n:1", "http://g:1", "http://g.n", "http://a@g.n:1", "http://g.n.x:1"]
        {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }
}
