"""What a change does, costs and breaks, for people: reads previews of the engine and looks at resources only."""
