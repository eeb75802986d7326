"""What a hub offers of a model, which part of it is wanted, and how a cut download goes on."""
