//! Requests for AWS: curl and boto3 sign with placeholders, and a server verifies that they have been signed again.

use super::*;

const ID: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const TOKEN: &str = "a-session-token/that+stays-outside==";

fn start() -> Server {
    Server::of("aws.py", &[ID, SECRET, TOKEN])
}

fn run(server: &Server, caller: Caller, options: &[&str], script: &str) -> Output {
    let (port, path) = (server.port, server.path("aws.yaml"));
    let credential = |name: &str, variable: &str, more: &str| {
        format!(
            "  - {{name: {name}, source: {{env: REAL_{variable}}}, hosts: [web.example], ports: [{port}], \
             env: {variable}{more}}}\n"
        )
    };
    let policy = format!(
        "apiVersion: policy.hutch.dev/v1alpha1\nkind: SandboxPolicy\nmetadata: {{name: team}}\nspec:\n  egress:\n    \
         rules:\n    - {{name: web, hosts: [web.example, other.example], ports: [{port}], private: [{ADDRESS}], \
         http: [{{}}]}}\n  credentials:\n{}{}{}",
        credential("aws-id", "AWS_ACCESS_KEY_ID", ""),
        credential("aws", "AWS_SECRET_ACCESS_KEY", ", aws: {accessKeyId: aws-id, sessionToken: aws-token}"),
        credential("aws-token", "AWS_SESSION_TOKEN", ""),
        ADDRESS = SERVER,
    );
    std::fs::write(&path, policy).expect("written");
    let options = [&["--policy", &path], options].concat();
    let script = script.replace("PORT", &port.to_string());
    let mut hutch = server.site.command(caller, &options, &["sh", "-c", &script]);
    hutch.env("SSL_CERT_FILE", server.path("public/ca.pem"));
    hutch.env("REAL_AWS_ACCESS_KEY_ID", ID).env("REAL_AWS_SECRET_ACCESS_KEY", SECRET);
    hutch.env("REAL_AWS_SESSION_TOKEN", TOKEN).output().expect("unshare")
}

/// Checks that no output has a value, and returns what the server has printed.
fn checked(server: &Server, output: &Output) -> String {
    for text in [text(&output.stdout), text(&output.stderr)] {
        assert!([ID, SECRET, TOKEN].iter().all(|value| !text.contains(value)), "{text}");
    }
    server.peer.printed()
}

#[test]
fn request_of_curl_is_signed_again() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let server = start();
    let curl = "curl -sS --aws-sigv4 aws:amz:us-east-1:service -u \"$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY\" \
                -H \"X-Amz-Security-Token: $AWS_SESSION_TOKEN\"";
    let script = format!(
        "{curl} https://web.example:PORT/a; {curl} -d a=1 https://web.example:PORT/b; \
         {curl} https://other.example:PORT/c"
    );
    for caller in callers() {
        let before = server.peer.printed().len();
        let output = run(&server, caller, &[], &script);
        let (printed, out) = (checked(&server, &output), text(&output.stdout));
        let printed = &printed[before..];
        assert!(printed.contains("verified GET /a hashed 0\n"), "{printed}\n{out}\n{}", text(&output.stderr));
        assert!(printed.contains("verified POST /b hashed 3\n"), "{printed}\n{out}");
        // The answer has the placeholder of the key, and the signature that the program has made.
        assert!(out.contains("Credential=AKIA"), "{out}");
        assert!(
            !printed.contains("/c") && out.contains("not bound to this host and port"),
            "{printed}\n{out}"
        );
    }
}

#[test]
fn requests_of_boto3_are_signed_again() {
    hutch_testkit::require!(root, user_namespaces, openssl, boto3);
    let server = start();
    let program = "
import boto3
from botocore.config import Config
url = 'https://web.example:PORT'
of = lambda service, checksum, **more: boto3.client(service, region_name='us-east-1', endpoint_url=url, config=Config(
    retries={'max_attempts': 0}, request_checksum_calculation=checksum, s3={'addressing_style': 'path', **more}))
print(of('dynamodb', 'when_supported').list_tables()['TableNames'])
s3 = of('s3', 'when_required', payload_signing_enabled=True)
s3.put_object(Bucket='bucket', Key='a b/c+d=%.txt', Body=b'0123456789')
print(s3.get_object(Bucket='bucket', Key='a b/c+d=%.txt')['Body'].read())
print(s3.get_object(Bucket='bucket', Key='part', Range='bytes=0-3')['Body'].read())
of('s3', 'when_supported').put_object(Bucket='bucket', Key='trailer', Body=b'0123456789')
of('s3', 'when_required', payload_signing_enabled=False).upload_part(Bucket='bucket', Key='x', PartNumber=1, UploadId='a b+/c', Body=b'0' * 100_000)
";
    let mount = format!(
        "{}:/boto3:ro",
        hutch_testkit::python_package("boto3").canonicalize().expect("there").display()
    );
    let options = ["--mount", &mount, "--env", "PYTHONPATH=/boto3", "--env", "PYTHONDONTWRITEBYTECODE=1"];
    let output = run(&server, Caller::Root, &options, &format!("python3 - <<'END'\n{program}\nEND"));
    let printed = checked(&server, &output);
    succeeded(&format!("{printed}{}", text(&output.stderr)), &output);
    assert!(!printed.contains("wrong") && text(&output.stdout).contains("b'AWS4'"), "{printed}");
    for expected in [
        "verified POST / hashed",
        "verified PUT /bucket/a%20b/c%2Bd%3D%25.txt hashed 10",
        "verified GET /bucket/a%20b/c%2Bd%3D%25.txt hashed",
        "verified GET /bucket/part hashed",
        "verified PUT /bucket/trailer STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "verified PUT /bucket/x?partNumber=1&uploadId=a%20b%2B%2Fc UNSIGNED-PAYLOAD 100000",
    ] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}
