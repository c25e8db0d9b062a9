//! Linux system layer of the SDK. Nothing is here without the feature `verbs`.
