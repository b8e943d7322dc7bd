use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use hyper::Method;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sextant_common::error::{ErrorKind, Result};
use sextant_common::ids::PartitionId;
use sextant_environment::Env;
use sextant_environment::env::{Connection, Door, Listener, Network, Whom};

use super::bucket::{Access, open};
use super::pretended::{BUCKET, Fault, Pretended, SECRET};
use super::refusal;
use crate::archive::segment::History;
use crate::guard::{Guard, Work};
use crate::manifest::{Backup, File};
use crate::prune::{Pruned, prune};
use crate::repository::Repository;
use crate::testing::{archived, assert_archived, backup, sst};

const MIB: usize = 1024 * 1024;

fn named(name: &str, created_ms: u64) -> Backup {
    Backup { name: name.into(), created_ms, cuts: Default::default(), is_part: false }
}

fn file(bytes: usize) -> File {
    File { id: sst(1).id, checksum: 1, bytes: bytes as u64 }
}

/// Bytes of which no two ranges are the same.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

async fn write(repository: &Repository, content: &[u8]) -> Result<()> {
    let mut writing = repository.write_table(&file(content.len()));
    for piece in content.chunks(MIB) {
        if let Err(e) = writing.write(piece).await {
            drop(writing);
            repository.settle().await;
            return Err(e);
        }
    }
    writing.finish().await
}

async fn read(repository: &Repository, bytes: usize) -> Result<Vec<u8>> {
    let pieces: Vec<_> = repository.read_table(&file(bytes)).await?.try_collect().await?;
    Ok(pieces.concat())
}

/// What is told of a first question to a store.
async fn refused(location: &str, variables: Vec<(String, String)>) -> sextant_common::Error {
    let access = Access { variables, ca: None, retries: 1 };
    match open(&Env::real(), location, &access) {
        Ok(store) => Repository::over(&Env::real(), store).names().await.unwrap_err(),
        Err(e) => e,
    }
}

fn with(mut variables: Vec<(String, String)>, name: &str, value: &str) -> Vec<(String, String)> {
    variables.retain(|(known, _)| known != name);
    variables.push((name.to_owned(), value.to_owned()));
    variables
}

#[tokio::test]
async fn a_bucket_is_a_repository() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    for (name, made_ms, ssts) in [("a", 1, [1, 2]), ("b", 2, [2, 3]), ("c", 3, [3, 4])] {
        backup(&repository, name, made_ms, &ssts).await;
    }
    assert_eq!(repository.names().await.unwrap(), ["a", "b", "c"]);
    assert_eq!(repository.tables().await.unwrap().len(), 4, "listed page by page");
    let b = repository.backup("b").await.unwrap();
    let mut read = repository.read_table(&b.files()[0]).await.unwrap();
    assert_eq!(read.try_next().await.unwrap().unwrap(), "sst");
    assert!(repository.commit(&named("b", 9)).await.unwrap_err().message.contains("already"));
    assert_eq!(repository.backup("b").await.unwrap(), b);
    let segments = archived(&repository, History { partition: PartitionId(0), lineage: 1 }).await;
    assert_archived(&repository, &segments).await;
    assert_eq!(
        prune(&repository, 1, &|_| ()).await.unwrap(),
        Pruned { backups: 2, files: 2, segments: 0, bytes: 6 }
    );
    assert_archived(&repository, &segments).await;
    let gone = repository.backup("a").await.unwrap_err();
    assert!(gone.message.contains("there is no backup"), "{gone}");
    let of_whole_bucket = Repository::over(&Env::real(), s3.store(BUCKET));
    assert!(of_whole_bucket.names().await.unwrap().is_empty(), "it begins elsewhere");
}

#[tokio::test]
async fn small_files_are_sent_in_one_and_large_ones_in_parts() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    for bytes in [8 * MIB, 17 * MIB + 5] {
        let content = content(bytes);
        write(&repository, &content).await.unwrap();
        assert!(read(&repository, bytes).await.unwrap() == content);
    }
    let puts: Vec<_> = s3.seen().into_iter().filter(|seen| seen.starts_with("PUT")).collect();
    let parts = puts.iter().filter(|put| put.contains("partNumber")).count();
    assert_eq!((puts.len(), parts, s3.uploads()), (4, 3, 0), "{puts:?}");
}

#[tokio::test]
async fn what_a_busy_store_refuses_is_asked_again() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    for (method, target) in [
        (Method::PUT, "/tables/"),
        (Method::PUT, "/manifest"),
        (Method::GET, "list-type"),
        (Method::GET, "/tables/"),
        (Method::DELETE, "/manifest"),
    ] {
        s3.fail(method, target, Fault::Busy);
    }
    write(&repository, b"sst").await.unwrap();
    repository.commit(&named("a", 1)).await.unwrap();
    assert_eq!(repository.names().await.unwrap(), ["a"]);
    assert_eq!(read(&repository, 3).await.unwrap(), b"sst");
    repository.remove_backup("a").await.unwrap();
    assert!(s3.has_failed());
}

#[tokio::test]
async fn a_backup_whose_answer_was_lost_is_there() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    s3.fail(Method::PUT, "/manifest", Fault::AnswerLost);
    repository.commit(&named("a", 1)).await.unwrap();
    assert!(s3.has_failed());
    let puts = s3.seen().iter().filter(|seen| seen.starts_with("PUT")).count();
    assert_eq!(puts, 2, "the second found the first one's");
    let other = repository.commit(&named("a", 2)).await.unwrap_err();
    assert!(other.message.contains("already"), "{other}");
    assert_eq!(repository.backup("a").await.unwrap().created_ms, 1);
}

#[tokio::test]
async fn answers_that_are_lost_on_the_way_do_no_harm() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    for (method, target) in
        [(Method::PUT, "partNumber=2"), (Method::DELETE, "/tables/"), (Method::GET, "list-type")]
    {
        s3.fail(method, target, Fault::AnswerLost);
    }
    let content = content(9 * MIB);
    write(&repository, &content).await.unwrap();
    assert!(read(&repository, content.len()).await.unwrap() == content);
    repository.remove_table(&file(content.len()).name()).await.unwrap();
    assert!(repository.tables().await.unwrap().is_empty());
    assert!(s3.has_failed());
}

#[tokio::test]
async fn a_file_whose_answer_breaks_off_is_read_on() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    let content = content(40 * MIB);
    write(&repository, &content).await.unwrap();
    // In the first range, in its rest, and in the second range.
    for _ in 0..3 {
        s3.fail(Method::GET, "/tables/", Fault::CutHalfWay);
    }
    assert!(read(&repository, content.len()).await.unwrap() == content);
    assert!(s3.has_failed());
    s3.fail(Method::GET, "/manifest", Fault::CutHalfWay);
    repository.commit(&named("a", 1)).await.unwrap();
    assert_eq!(repository.backup("a").await.unwrap().created_ms, 1);
    assert!(s3.has_failed());
}

#[tokio::test]
async fn a_file_that_breaks_off_again_and_again_is_an_error_of_one_line() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    write(&repository, b"sst").await.unwrap();
    for _ in 0..10 {
        s3.fail(Method::GET, "/tables/", Fault::CutHalfWay);
    }
    let error = read(&repository, 3).await.unwrap_err();
    assert!(error.kind == ErrorKind::Unavailable && !error.message.contains('\n'), "{error}");
}

#[tokio::test]
async fn a_file_of_another_size_is_not_read() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    write(&repository, b"sst").await.unwrap();
    for bytes in [2, 4] {
        let error = read(&repository, bytes).await.unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains("3 bytes instead"), "{error}");
    }
    repository.remove_table(&file(3).name()).await.unwrap();
    let error = read(&repository, 3).await.unwrap_err();
    assert!(error.message.contains(&format!("{}: it is not there", file(3).name())), "{error}");
}

#[tokio::test]
async fn parts_that_could_not_be_sent_are_taken_back() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    for _ in 0..10 {
        s3.fail(Method::PUT, "partNumber=2", Fault::Busy);
    }
    let error = write(&repository, &content(9 * MIB)).await.unwrap_err();
    assert!(error.message.contains("SlowDown"), "{error}");
    assert_eq!(s3.uploads(), 0);
    assert!(repository.tables().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_file_that_was_put_together_is_there_though_nobody_was_told() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    s3.fail(Method::POST, "uploadId", Fault::AnswerLost);
    let content = content(9 * MIB);
    write(&repository, &content).await.unwrap();
    assert!(s3.has_failed() && read(&repository, content.len()).await.unwrap() == content);
}

#[tokio::test]
async fn who_stops_writing_takes_the_parts_back() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    let mut writing = repository.write_table(&file(20 * MIB));
    writing.write(&content(9 * MIB)).await.unwrap();
    assert_eq!(s3.uploads(), 1);
    drop(writing);
    repository.settle().await;
    assert_eq!(s3.uploads(), 0);
}

#[tokio::test]
async fn who_does_not_wait_for_the_end_of_a_file_leaves_no_parts() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    let content = content(9 * MIB);
    let mut writing = repository.write_table(&file(content.len()));
    writing.write(&content).await.unwrap();
    assert!(writing.finish().now_or_never().is_none(), "it is sent yet");
    repository.settle().await;
    assert_eq!(s3.uploads(), 0);
    assert!(read(&repository, content.len()).await.unwrap() == content);
}

#[tokio::test]
async fn marks_of_one_second_exclude_each_other() {
    let s3 = Pretended::plain().await;
    let repository = s3.repository();
    for (first, second) in [(Work::Creating, Work::Pruning), (Work::Pruning, Work::Creating)] {
        let guard = Guard::take(&repository, first).await.unwrap();
        let error = Guard::take(&repository, second).await.err().unwrap();
        assert!(error.message.contains("in use"), "{error}");
        guard.look().await.unwrap();
        guard.release().await;
    }
    assert!(repository.marks().await.unwrap().is_empty());
}

#[tokio::test]
async fn each_refusal_is_told_in_a_line() {
    let s3 = Pretended::plain().await;
    let good = || s3.variables();
    let cases = [
        ("other/p", good(), ErrorKind::Invalid, "there is no such bucket (NoSuchBucket"),
        ("backups", with(good(), "AWS_ACCESS_KEY_ID", "x"), ErrorKind::Unauthenticated, "InvalidAccessKeyId"),
        ("backups", with(good(), "AWS_SECRET_ACCESS_KEY", "x"), ErrorKind::Unauthenticated, "not the key's"),
        ("/backups", good(), ErrorKind::Invalid, "without a bucket"),
        ("backups", with(good(), "AWS_ALLOW_HTTP", "no"), ErrorKind::Invalid, "AWS_ALLOW_HTTP=true"),
        ("backups", with(good(), "AWS_ENDPOINT_URL", "localhost:1"), ErrorKind::Invalid, "https://HOST"),
        ("backups", with(good(), "AWS_ACCESS_KEY_ID", ""), ErrorKind::Invalid, "without AWS_ACCESS_KEY_ID"),
        (
            "backups",
            with(good(), "AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
            ErrorKind::Unavailable,
            "127.0.0.1:1: Connection refused",
        ),
        (
            "backups",
            with(good(), "AWS_ENDPOINT_URL", &format!("https://{}", s3.addr)),
            ErrorKind::Unauthenticated,
            "it speaks no TLS",
        ),
    ];
    for (location, variables, kind, said) in cases {
        let error = refused(location, variables).await;
        assert!(error.kind == kind && error.message.contains(said), "{said}: {error:?}");
        assert!(!error.message.contains('\n') && !error.message.contains(SECRET), "{error}");
    }
    let missing = Repository::over(&Env::real(), s3.store("other")).backup("a").await.unwrap_err();
    assert!(missing.message.contains("no such bucket"), "{missing}");
}

/// Leads nowhere.
struct Nowhere;

impl Network for Nowhere {
    fn bind(&self, _: String, _: Door) -> BoxFuture<'static, std::io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(std::io::ErrorKind::Unsupported.into()) })
    }

    fn connect(&self, _: String, _: Whom) -> BoxFuture<'static, std::io::Result<Connection>> {
        Box::pin(async { Err(std::io::ErrorKind::HostUnreachable.into()) })
    }
}

#[tokio::test]
async fn without_credentials_the_error_names_the_variables() {
    let env = Env { net: Arc::new(Nowhere), ..Env::real() };
    let access = Access { variables: Vec::new(), ca: None, retries: 8 };
    let repository = Repository::over(&env, open(&env, "backups", &access).unwrap());
    let error = repository.names().await.unwrap_err();
    assert!(error.message.contains("no credentials: AWS_ACCESS_KEY_ID"), "{error}");
    assert_eq!(error.kind, ErrorKind::Unauthenticated);
    let source = "PUT http://169.254.169.254/latest/api/token: 403 Forbidden".into();
    let error = refusal::error(&object_store::Error::Generic { store: "S3", source });
    assert!(error.message.contains("no credentials: AWS_ACCESS_KEY_ID"), "{error}");
}

#[tokio::test]
async fn secrets_are_in_nothing_that_is_printed() {
    let s3 = Pretended::plain().await;
    let variables = with(s3.variables(), "AWS_SESSION_TOKEN", "token-of-mine");
    let store = open(&Env::real(), "backups/x", &Access { variables, ca: None, retries: 0 }).unwrap();
    let printed = format!("{store:?} {store}");
    assert!(printed.contains("******"), "{printed}");
    assert!(!printed.contains(SECRET) && !printed.contains("token-of-mine"), "{printed}");
}

/// An authority's certificate, a certificate for localhost and its key.
fn issued() -> (String, String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (ca, params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
}

#[tokio::test]
async fn a_store_is_trusted_by_the_authority_that_is_named_and_by_no_other() {
    let (ca, cert, key) = issued();
    let s3 = Pretended::encrypted(&cert, &key).await;
    let stranger = refused(BUCKET, s3.variables()).await;
    assert!(
        stranger.message.contains("UnknownIssuer") && stranger.message.contains("--store-ca"),
        "{stranger}"
    );
    assert_eq!(s3.seen().len(), 0);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    let opened =
        || open(&Env::real(), BUCKET, &Access { variables: s3.variables(), ca: Some(&path), retries: 1 });
    assert!(opened().err().unwrap().message.contains("--store-ca"), "there is none");
    std::fs::write(&path, "rubbish").unwrap();
    assert!(opened().err().unwrap().message.contains("no certificate in it"));
    std::fs::write(&path, ca).unwrap();
    let repository = Repository::over(&Env::real(), opened().unwrap());
    write(&repository, b"sst").await.unwrap();
    assert_eq!(read(&repository, 3).await.unwrap(), b"sst");
}
