//! Certificates that programs in a sandbox trust.

/// ConfigMap with the certificates that Pods of a gateway trust, and the volume of it in these Pods.
pub const CONFIG_MAP: &str = "hutch-egress-ca";
/// Variables that name the file with the certificates, for OpenSSL and Go, Python's requests and pip, curl, Node, git, cargo,
/// clients of AWS, Deno.
pub const VARIABLES: [&str; 9] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
];
