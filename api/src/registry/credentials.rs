//! Credentials of registries, from the files and helpers of docker and podman.

use docker_credential::{
    CredentialRetrievalError as Why, DockerCredential, get_credential, get_podman_credential,
};

use super::RegistryError;
use super::endpoint::Endpoint;

/// A login of a user.
#[derive(Clone)]
pub(super) enum Login {
    /// No login: most images are public.
    Anonymous,
    Password {
        user: String,
        password: String,
    },
    /// A token that the registry changes for others.
    Refresh(String),
}

impl Login {
    /// Finds the login of a registry. `$REGISTRY_AUTH_FILE` and podman's file come before docker's.
    pub(super) fn find(endpoint: &Endpoint) -> Result<Self, RegistryError> {
        // podman keeps docker's login under its plain name.
        match get_podman_credential(&endpoint.registry) {
            Ok(found) => return Ok(found.into()),
            Err(why) if is_absent(&why) => {}
            Err(why) => return Err(failed(endpoint, &why)),
        }
        match get_credential(endpoint.key()) {
            Ok(found) => Ok(found.into()),
            Err(why) if is_absent(&why) => Ok(Self::Anonymous),
            Err(why) => Err(failed(endpoint, &why)),
        }
    }
}

impl From<DockerCredential> for Login {
    fn from(found: DockerCredential) -> Self {
        match found {
            DockerCredential::IdentityToken(token) => Self::Refresh(token),
            DockerCredential::UsernamePassword(user, password) => Self::Password { user, password },
        }
    }
}

/// Tells whether there just is no login of the registry.
fn is_absent(why: &Why) -> bool {
    match why {
        Why::ConfigNotFound | Why::ConfigReadError | Why::NoCredentialConfigured => true,
        // The answer of helpers that have none (docker-credential-helpers, credentials/error.go).
        Why::HelperFailure { stdout, .. } => stdout.contains("credentials not found"),
        _ => false,
    }
}

fn failed(endpoint: &Endpoint, why: &Why) -> RegistryError {
    RegistryError::Credentials { registry: endpoint.registry.clone(), problem: why.to_string() }
}
