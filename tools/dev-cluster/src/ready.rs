//! The ready line: what a running cluster says of itself, on standard output and in `ready.json`.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadyLine {
    pub ready: bool,
    pub pnodes: Vec<PNodeReady>,
    pub memtable: Vec<ServerReady>,
    pub sstable: Vec<ServerReady>,
}

/// Addresses are `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PNodeReady {
    pub id: u64,
    pub grpc: String,
    pub admin: String,
    pub resp: String,
    pub http: String,
    pub pid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerReady {
    pub id: u64,
    pub addr: String,
    pub http: String,
    pub pid: u32,
}

impl ReadyLine {
    /// One line of JSON.
    pub fn json(&self) -> String {
        // Strings and numbers only: cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_documented_form() {
        let line = ReadyLine {
            ready: true,
            pnodes: vec![PNodeReady {
                id: 1,
                grpc: "127.0.0.1:7400".into(),
                admin: "127.0.0.1:8400".into(),
                resp: "127.0.0.1:6380".into(),
                http: "127.0.0.1:7480".into(),
                pid: 7,
            }],
            memtable: vec![ServerReady {
                id: 1,
                addr: "127.0.0.1:20000".into(),
                http: "127.0.0.1:7482".into(),
                pid: 8,
            }],
            sstable: vec![],
        };
        assert_eq!(
            line.json(),
            r#"{"ready":true,"pnodes":[{"id":1,"grpc":"127.0.0.1:7400","admin":"127.0.0.1:8400","resp":"127.0.0.1:6380","http":"127.0.0.1:7480","pid":7}],"memtable":[{"id":1,"addr":"127.0.0.1:20000","http":"127.0.0.1:7482","pid":8}],"sstable":[]}"#
        );
    }
}
