//! `failover`: how long service is gone, by fault.

use sextant_common::error::{Error, Result};

use crate::args::FailoverArgs;
use crate::host::confine::Confined;

pub async fn run(_args: FailoverArgs, _confined: Confined) -> Result<bool> {
    Err(Error::invalid("not yet"))
}
