//! A channel to a p-node that says who the client is.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sextant_common::error::{Error, Result};
use sextant_environment::env::{Network, grpc_channel, grpc_stream_channel};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::options::Credentials;

pub(crate) type Wire = InterceptedService<Channel, Says>;

/// Makes a connection to an address: [`Says::over`], or [`Says::streams_over`].
pub(crate) type Over = fn(&Says, &Arc<dyn Network>, &str) -> Wire;

/// What is added to each call (`authorization: Basic`, RFC 7617).
#[derive(Clone, Default)]
pub(crate) struct Says(Option<MetadataValue<Ascii>>);

impl Says {
    pub fn new(credentials: Option<&Credentials>) -> Result<Self> {
        let Some(Credentials { user, password }) = credentials else { return Ok(Self(None)) };
        if user.contains(':') {
            return Err(Error::invalid("a user's name has no colon"));
        }
        let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
        let mut value: MetadataValue<Ascii> = format!("Basic {encoded}")
            .parse()
            .map_err(|_| Error::invalid("these credentials cannot be sent"))?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }

    pub fn over(&self, net: &Arc<dyn Network>, addr: &str) -> Wire {
        InterceptedService::new(grpc_channel(net, addr), self.clone())
    }

    /// For streams that may be left unread: in a connection of calls they would keep all answers from coming.
    pub fn streams_over(&self, net: &Arc<dyn Network>, addr: &str) -> Wire {
        InterceptedService::new(grpc_stream_channel(net, addr), self.clone())
    }
}

impl Interceptor for Says {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}
