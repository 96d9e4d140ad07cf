"""The system under test: Ray Serve with vLLM replicas, the tool, the gateway, and the links between them."""
